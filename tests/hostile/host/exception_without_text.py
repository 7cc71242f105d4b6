"""Raises an exception whose text raises."""

# expect: exception


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        class Silent(BaseException):
            def __str__(self):
                raise self

        raise Silent
