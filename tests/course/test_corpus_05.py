from tests.corpus_tests import all_answers_of, own_home  # noqa: F401

test_wrong_answer_is_rejected, test_right_answer_is_accepted, test_reference_is_accepted, test_size = all_answers_of(
    "l05"
)
