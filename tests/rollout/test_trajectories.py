import numpy as np

from spade_jax import structs
from spade_jax.designer.payment import Payment
from spade_jax.rollout import trajectories


def turn(prompt, response, version=3):
    n = len(response)
    return structs.Turn(
        observation="",
        prompt_tokens=np.array(prompt, np.int32),
        response_tokens=np.array(response, np.int32),
        behaviour_logp=np.arange(n, dtype=np.float32) - 5,
        versions=np.full(n, version, np.int32),
        response="",
        action="",
    )


def episode(turns, arm=structs.PLAIN, status=structs.SUCCESS, environment="e"):
    return structs.Episode(environment, structs.AGENT, arm, 0, 0, tuple(turns), 1.0, status)


def test_a_conversation_is_one_sequence_with_only_drawn_tokens_in_the_loss():
    got = trajectories.conversation_trajectory(
        episode([turn([1, 2], [3, 4]), turn([5], [6], version=2)]), group=7, temperature=0.5
    )
    np.testing.assert_array_equal(got.tokens, [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(got.loss_mask, [False, False, True, True, False, True])
    np.testing.assert_array_equal(got.behaviour_logp, [0, 0, -5, -4, 0, -5])
    assert (got.role, got.group, got.temperature, got.version) == (structs.ROLE_ID["agent"], 7, 0.5, 2)


def test_the_training_set_is_plain_and_not_void_and_stale_samples_weigh_nothing():
    records = [structs.EnvironmentRecord(id=name, source="", class_name="") for name in ("e", "f")]
    episodes = [
        episode([turn([1], [2])]),
        episode([turn([1], [2])], arm=structs.HINTED),
        episode([turn([1], [2])], status=structs.VOID),
        episode([], status=structs.TRUNCATED),
        episode([turn([1], [2])], environment="f", status=structs.FAILURE),
    ]
    designer = trajectories.conversation_trajectory(episodes[0], 4, 1.0)
    stale = trajectories.conversation_trajectory(episode([turn([1], [2], version=0)]), 4, 1.0)
    paid = [Payment(designer, False), Payment(stale, True)]
    got = trajectories.training_set(records, episodes, paid, 1.0, oldest=1)
    assert [t.group for t in got] == [0, 1, 4, 4]
    assert [t.weight for t in got] == [1.0, 1.0, 1.0, 0.0]
