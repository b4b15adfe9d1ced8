from superpose.learning import summarise


def record(step, task, end, **accuracy):
    found = {name[1:]: value for name, value in accuracy.items()}
    return {"step": step, "task": task, "loss": 1 / step, "accuracy": found, "end": end}


RECORDS = [
    record(5, 0, False, _0=0.5),
    record(10, 0, True, _0=0.9),
    record(20, 1, True, _0=0.95, _1=0.8),
    record(30, 2, True, _0=0.4, _1=0.6, _2=0.7),
]


def test_all_measures_by_hand():
    result = summarise(RECORDS, tasks=3)
    assert result["matrix"] == [[0.9, None, None], [0.95, 0.8, None], [0.4, 0.6, 0.7]]
    assert result["final"] == [0.4, 0.6, 0.7]
    assert (result["first_task"], result["last_task"]) == (0.4, 0.7)
    assert abs(result["mean_all"] - 1.7 / 3) < 1e-12
    assert abs(result["mean_when_learned"] - 0.8) < 1e-12
    # From the best ever, 0.95 and 0.8, against from when it was learned, 0.9 and 0.8.
    assert abs(result["forgetting"] - (0.55 + 0.2) / 2) < 1e-12
    assert abs(result["backward_transfer"] - (-0.5 - 0.2) / 2) < 1e-12
    assert result["first"] == [[5, 0.5], [10, 0.9], [20, 0.95], [30, 0.4]]


def test_the_last_ten_of_more():
    last = {f"_{k}": k / 100 for k in range(12)}
    ends = [record(k + 1, k, True, **{"_0": 0.0, f"_{k}": k / 100}) for k in range(11)]
    result = summarise([*ends, record(12, 11, True, **last)], tasks=12)
    assert abs(result["mean_last_ten"] - sum(range(2, 12)) / 1000) < 1e-12
    assert abs(result["mean_all"] - sum(range(12)) / 1200) < 1e-12
    assert result["forgetting"] == 0


def test_a_task_that_comes_again_was_learned_when_it_first_ended():
    again = [*RECORDS[1:3], record(30, 0, True, _0=0.97, _1=0.85)]
    result = summarise(again, tasks=2)
    assert abs(result["mean_when_learned"] - (0.9 + 0.8) / 2) < 1e-12
    assert result["forgetting"] == 0, "the second task is best at the end"
    assert abs(result["backward_transfer"] - 0.05) < 1e-12


def test_one_task_forgets_nothing():
    result = summarise(RECORDS[:2], tasks=1)
    assert (result["forgetting"], result["backward_transfer"]) == (0, 0)
