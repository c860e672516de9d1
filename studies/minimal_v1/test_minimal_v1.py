"""The study's items: one per attempt, and one per answer to judge. Assertions of your own go here."""


def test_attempt(study_attempt):
    study_attempt.run()


def test_adjudication(study_adjudication):
    study_adjudication.run()
