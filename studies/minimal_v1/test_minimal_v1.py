"""The study's items: one per attempt. Assertions, graders and marks of your own go here."""


def test_attempt(study_attempt):
    study_attempt.run()
