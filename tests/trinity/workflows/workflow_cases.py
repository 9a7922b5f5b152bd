"""What workflows and rewards are tried on; answers.json is what the real trinity-rft 0.6.0 gives for it."""

import json

SMALL = json.dumps({"target": 24, "numbers": [4, 6]})
THREE = json.dumps({"target": 1.5, "numbers": [3, 2, 1]})
FORMED = "<think>\nsix by four\n</think>\n<answer>\n24\n</answer>"

# Name of a reward → its arguments, and (response, truth, what else it is called with).
BOXED_PAIRS = [
    (r"so \boxed{42}", "42"),
    (r"so \boxed{42}", "43"),
    (r"\boxed{1} then \boxed{2}", "2"),
    (r"\boxed 7$ and more", "7"),
    (r"\fbox{3}", "3"),
    ("no box", "3"),
    (r"\boxed{3", "3"),
    (r"\boxed{\frac12}", r"\frac{1}{2}"),
    (r"\boxed{1/2}", r"\dfrac{1}{2}"),
    (r"\boxed{-3/4}", r"\tfrac{-3}{4}"),
    (r"\boxed{01/2}", "1/2"),
    (r"\boxed{\sqrt2/2}", r"\frac{\sqrt{2}}{2}"),
    (r"\boxed{\frac{1}2}", r"\frac{1}{2}"),
    (r"\boxed{\frac1{2}}", r"\frac{1}{2}"),
    (r"\boxed{\frac}", r"\frac"),
    (r"\boxed{50\%}", "50"),
    (r"\boxed{50%}", "50"),
    (r"\boxed{\$1,000}", "1,000"),
    (r"\boxed{90^\circ}", "90"),
    (r"\boxed{90^{\circ}}", "90"),
    (r"\boxed{5\text{ cm}}", "5"),
    (r"\boxed{12 miles per hour}", "12"),
    (r"\boxed{seven}", "7"),
    (r"\boxed{twenty one}", "21"),
    (r"\boxed{point}", "point"),
    (r"\boxed{hundred point}", "100"),
    (r"\boxed{x = 5}", "5"),
    (r"\boxed{5.0}", "5"),
    (r"\boxed{.5}", "0.5"),
    (r"\boxed{{.5}}", "0.5"),
    (r"\boxed{infinity}", r"\infty"),
    (r"\boxed{inf}", r"\infty"),
    (r"\boxed{\left(1, 2\right)}", "(1,2)"),
    (r"\boxed{\{1\}}", "1"),
    (r"\boxed{\begin{array}{cc}1&2\end{array}}", r"\begin{pmatrix}1&2\end{pmatrix}"),
    (r"\boxed{\begin{bmatrix}1\end{bmatrix}}", r"\begin{pmatrix}1\end{pmatrix}"),
    (r"\boxed{x \neq 2}", r"x \ne 2"),
    (r"\boxed{\mathbf{A}}", "{A}"),
    (r"\boxed{3\mbox{ inches}}", "3"),
    (r"\boxed{a}", "b"),
    (r"\boxed{}", ""),
    (r"\boxed{4.}", "4"),
    (r"\boxed{2}", r"the answer is \boxed{2}"),
    (r"\boxed{2}", r"the answer is \fbox{2}"),
    ("\\boxed{1\n2}", "12"),
    (r"\boxed{10 m}", "10 kg"),
    (r"\boxed{1_0/2}", "1_0/2"),
    (r"\boxed{\leftarrow}", "arrow"),
    (r"\boxed{( 3 )}", "3"),
]

MATH_PAIRS = [
    ("<think>a</think> <answer>42</answer>", "42"),
    ("<think>a</think> <answer>42</answer>", "43"),
    ("<think>a</think> <answer>$\\frac{1}{2}$</answer>", "0.5"),
    ("<think>a</think><answer>42</answer> and more", "42"),
    ("the answer is 42", "42"),
    ("the answer is $\\boxed{42}$", "<answer>42</answer>"),
    ("<answer>4\n2</answer>", "42"),
    ("", "42"),
    ("<think>a</think> <answer>$x^2+1$</answer>", "$1+x^2$"),
    ("<think>a</think> <answer>50%</answer>", "0.5"),
    ("<think>a</think> <answer>(1, 2)</answer>", "$(1,2)$"),
]

ACCURACY_PAIRS = [
    (r"so $\boxed{42}$", "$42$"),
    (r"so $\boxed{42}$", "42"),
    (r"so \boxed{\frac{1}{2}}", r"$\frac{2}{4}$"),
    (r"so $x = 3$", "$3$"),
    ("42", "$42$"),
    ("nothing", "nothing"),
    (r"$\boxed{1}$ and $\boxed{2}$", "$2$"),
]

COUNTDOWN_PAIRS = [
    ("<answer>4 * 6</answer>", SMALL),
    ("<answer>4 + 6</answer>", SMALL),
    ("<answer>4 * 6 * 1</answer>", SMALL),
    ("<answer>4*6 = 24</answer>", SMALL),
    ("<answer>4*6</answer>\nno", SMALL),
    ("no\n<answer>4+6</answer> <answer>(4)*(6)</answer>", SMALL),
    ("nothing", SMALL),
    ("<answer>4 6</answer>", SMALL),
    ("<answer>(4)(6)</answer>", SMALL),
    ("<answer>3/2*1</answer>", THREE),
    ("<answer>3/2**1</answer>", THREE),
    ("<answer>3//2*1</answer>", THREE),
    ("<answer>-3/-2*1</answer>", THREE),
    ("<answer>3/(2-2)</answer>", json.dumps({"target": 1, "numbers": [3, 2, 2]})),
    ("<answer>(1-3)**(1/2)</answer>", json.dumps({"target": 1, "numbers": [1, 3, 1, 2]})),
    ("<answer>...</answer>", json.dumps({"target": 1, "numbers": []})),
    ("<answer>01+2</answer>", json.dumps({"target": 3, "numbers": [1, 2]})),
    ("<answer></answer>", SMALL),
]

DAPO_PAIRS = [
    *BOXED_PAIRS,
    ("<think>\\boxed{1}</think> so \\boxed{2}", "2"),
    ("<think>\\boxed{2}</think> so 1", "2"),
    ("12", "12"),
    ("1,000", "1000"),
    ("12 apples", "12"),
    ("a text that is longer than twenty characters", "a text that is longer than twenty characters"),
    (r"\boxed{(1/2, 1/3)}", "(1/2,1/3)"),
    (r"\boxed{x^2+1}", "1+x^2"),
    (r"\boxed{2\pi}", r"2\pi"),
    (r"\boxed{6.28}", r"2\pi"),
    (r"\boxed{0.5}", r"\frac{1}{2}"),
    (r"\boxed{\frac{2}{4}}", r"\frac{1}{2}"),
    (r"\boxed{50}", "0.5"),
    (r"\boxed{[1, 2]}", "[1,2]"),
    (r"\boxed{\sqrt{8}}", r"2\sqrt{2}"),
    (r"\boxed{7 \text{ cm}}", "7"),
]
OVERLONG = {
    "enable_overlong_penalty": True,
    "penalty_factor": 0.5,
    "max_response_length": 20,
    "cache_length": 8,
}

FORMS = [FORMED, f"{FORMED} more", f"say\n{FORMED}", FORMED.replace("\n", ""), "", "<answer>\n1\n</answer>"]

REWARDS = [
    *(("math_boxed_reward", {}, response, truth, {}) for response, truth in BOXED_PAIRS),
    *(
        ("math_boxed_reward", {"any": 1}, rf"{text}\boxed{{1}}", "1", {"with_think": think, **more})
        for text in ("", "<think>a</think>", "</think><think>", "<think><think></think>")
        for think in (True, False)
        for more in ({}, {"format_score_coef": 0.5}, {"format_score_coef": 0})
    ),
    *(("math_reward", {}, response, truth, {}) for response, truth in MATH_PAIRS),
    ("math_reward", {"pattern": "^ok"}, "ok 42", "42", {}),
    ("math_reward", {"pattern": None}, FORMED, "24", {}),
    *(("accuracy_reward", {}, response, truth, {}) for response, truth in ACCURACY_PAIRS),
    *(("countdown_reward", {}, response, truth, {}) for response, truth in COUNTDOWN_PAIRS),
    *(("math_dapo_reward", {}, response, truth, {"response_tokens": 1}) for response, truth in DAPO_PAIRS),
    *(
        ("math_dapo_reward", OVERLONG, r"\boxed{1}", "1", {"response_tokens": count})
        for count in (1, 11, 12, 13, 16, 20, 21, 40)
    ),
    *(("format_reward", {}, response, None, {}) for response in FORMS),
    ("format_reward", {"pattern": "b$"}, "a\nb", None, {}),
    ("format_reward", {"pattern": "a$"}, "a\nb", None, {}),
]

ROW = {
    "prompt": "What is 6 * 7?",
    "response": "42",
    "question": "And 6 + 7?",
    "answer": "13",
    "which": "math_reward",
}
ANSWERS = ["<think>a</think> <answer>42</answer>", r"so \boxed{42}", r"<think>b</think> \boxed{13}", "none"]

# A workflow, the fields of its taskset.
WORKFLOWS = [
    ("simple_workflow", {"reward": "math_reward"}),
    ("simple_workflow", {"reward": "accuracy_reward", "format": {"system_prompt": "Be brief."}}),
    ("simple_workflow", {"reward": "math_boxed_reward", "format": {"reply_prefix": "It is "}}),
    (
        "simple_workflow",
        {"reward": "math_reward", "format": {"prompt_key": "question", "response_key": "answer"}},
    ),
    ("async_simple_workflow", {"reward": "math_reward", "reward_fn_args": {"pattern": "so"}}),
    ("simple_workflow", {"reward": "accuracy_reward", "format": {"reward_fn_key": "which"}}),
    ("math_workflow", {}),
    ("async_math_workflow", {"reward": "math_reward"}),
    ("math_workflow", {"reward": "accuracy_reward"}),
    ("math_workflow", {"format": {"system_prompt": ""}}),
    ("math_workflow", {"format": {"system_prompt": "Mine.", "reply_prefix": "<think>"}}),
    ("math_boxed_workflow", {}),
    ("async_math_boxed_workflow", {"workflow_args": {"with_think": True}}),
    ("math_boxed_workflow", {"workflow_args": {"with_think": True, "format_score_coef": 0.5}}),
    ("math_boxed_workflow", {"workflow_args": {"use_base": True}}),
    (
        "math_boxed_workflow",
        {"workflow_args": {"use_base": True}, "format": {"system_prompt": "", "prompt_key": "question"}},
    ),
    ("math_boxed_workflow", {"reward": "math_boxed_reward", "format": {"system_prompt": "Box it."}}),
    ("math_boxed_workflow", {"reward": "math_dapo_reward"}),
]
