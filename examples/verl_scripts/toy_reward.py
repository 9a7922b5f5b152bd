"""The toy's reward, as veRL calls a custom reward function: 1.0 for the right answer, else 0.0."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str.strip() == ground_truth)
