from spade_jax import structs
from spade_jax.runtime import texts


def test_a_program_cannot_leave_its_code_block():
    report = structs.GateReport((structs.CheckVerdict("parse", False, "```\n# not a heading"),), "unparsable", False)
    record = structs.EnvironmentRecord(id="", source="```\n# heading", class_name="", hint="```", report=report)
    text = texts.program(record)
    assert text.count("````") == 6  # three blocks, each fenced longer than what it holds
    assert "parse: failed" in text


def test_a_transcript_names_arm_seed_and_outcome():
    turn = structs.Turn("Guess.", None, None, None, None, "It is \\boxed{4}", "\\boxed{4}", 1.0)
    episode = structs.Episode("e", structs.AGENT, structs.HINTED, 0, 17, (turn,), 1.0, structs.SUCCESS)
    text = texts.transcript(episode, "halve")
    for part in ("hinted, seed 17: success, return 1.00", "hint: halve", "environment: Guess.", "[reward 1.00]"):
        assert part in text
