"""Rows of files and how they are read, for ours and trinity-rft's formatters alike. Plain Python."""

TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "sort 4312"},
    {"role": "assistant", "content": "1234"},
    {"role": "user", "content": "and 21"},
    {"role": "assistant", "content": "12"},
]
PLAIN = {
    "prompt": "sort 4312",
    "response": "1234",
    "system": "be brief",
    "chosen": "1234",
    "rejected": "4321",
}
MESSAGES = {"messages": TALK}
PAIR = {"messages": TALK[:2], "chosen": TALK[2:3], "rejected": [{"role": "assistant", "content": "43"}]}
TOLD = {"messages_key": "messages"}
# A template of which Trinity counts the last round only: it thinks.
THINKING = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{# <think> #}"
)

# schema, format, row
CASES = [
    ("sft", TOLD, MESSAGES),
    ("sft", {**TOLD, "enable_concatenated_multi_turn": True}, MESSAGES),
    ("sft", {**TOLD, "enable_concatenated_multi_turn": True, "chat_template": THINKING}, MESSAGES),
    ("sft", {"prompt_type": "plaintext"}, PLAIN),
    ("sft", {"prompt_type": "plaintext", "system_prompt": "think"}, PLAIN),
    ("sft", {"prompt_type": "plaintext", "system_prompt_key": "system", "system_prompt": "think"}, PLAIN),
    ("cpt", {"prompt_type": "plaintext", "prompt_key": "response"}, PLAIN),
    ("dpo", {"prompt_type": "plaintext", "system_prompt": "think"}, PLAIN),
    ("dpo", TOLD, PAIR),
]
