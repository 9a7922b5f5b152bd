"""Secrets in every form in which a launch has them, and a script that has them all."""

import shlex

KWARGS = "+reward.custom_reward_function.reward_kwargs"
# A key of reward_kwargs, and its value as Hydra spells it; {} is the secret, which is unlike any word.
FORMS = {
    "url": "https://user:{}@host/x",
    "dsn": "postgresql://u@h/db?password={}",
    "dsn_twice": "postgresql://u:{}a@h/db?sslmode=require&password={}b",
    "query": "curl http://x/y?token={}&n=1 -o out",
    "api_key": "{}",
    "judge_password": "{}",
    "openai_keys": "[{}a,{}b]",
    "credentials": "{{user: {}}}",
    "listed": "[{{secret: {}}}]",
    "mapped": "{{a: {{accessToken: {}}}}}",
    "headers": "{{Authorization: 'Bearer {}'}}",
    "headers_basic": "{{Authorization: 'Basic {}'}}",
    "headers_key": "{{X-Api-Key: {}}}",
    "headers_cookie": "{{Cookie: 'sid={}; theme=dark'}}",
    "command": "curl -H 'X-Api-Key: {}' http://x",
    "command_auth": "curl -H 'Authorization: Bearer {}' http://x",
    "command_user": "curl -u user:{} http://x",
    "command_option": "mysql --password {} -h db",
    "command_equals": "mysql --password={} -h db",
    "command_variable": "PGPASSWORD={} psql -h db",
    "phrase": "{{password: 'two words {}'}}",
}
# Tokens that tell themselves: whole, under names that say nothing, and inside a text.
TOKENS = (
    "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567",
    "sk-" + "proj-0a1B2c3D4e5F6g7H8i9J0k1L",
    "ghp_" + "0a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R",
    "github_pat_" + "11AAAAAAA0a1B2c3D4e5F6_g7H8i9J0k1L2m3N4o5",
    "glpat-" + "0a1B2c3D4e5F6g7H8i9J",
    "xoxb-" + "123456789012-1234567890123-0a1B2c3D4e5F",
    "AKIA" + "Z7QK3M5N2P4R6T8V",
    "eyJ" + "hbGciOiJIUzI1NiJ9." + "eyJ" + "zdWIiOiIxMjM0NTY3ODkwIn0." + "c2lnbmF0dXJl01",
)
NUMBER = "48151623421"
VARIABLE = "v4riableZq91x"


def mark(name):
    return f"zq{name.replace('_', '').title()}7Sx"


PLANTED = {name: form.format(*[mark(name)] * 2) for name, form in FORMS.items()}
SECRETS = (*map(mark, FORMS), *TOKENS, NUMBER, VARIABLE)
# Words of a launch whose plan is made on any machine.
LAUNCH = """\
    data.train_files=train.parquet data.val_files=val.parquet \\
    data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct actor_rollout_ref.rollout.name=vllm \\
    critic.model.path=Qwen/Qwen2.5-0.5B-Instruct critic.ppo_micro_batch_size_per_gpu=1 \\
    algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4 trainer.total_training_steps=2 \\
    trainer.n_gpus_per_node=1 trainer.nnodes=1 trainer.project_name=p"""
SCRIPT = f"""\
export MY_TOKEN="{VARIABLE}"
python3 -m verl.trainer.main_ppo \\
{LAUNCH} trainer.experiment_name=x-$MY_TOKEN \\
    trainer.resume_mode=disable reward.custom_reward_function.path=reward.py \\
    reward.custom_reward_function.name=compute_score data.prompt_key=question \\
    {KWARGS}.pin_password={NUMBER} \\
"""


def word(name, text):
    plain = text.startswith(("[", "{")) or text.isalnum()
    return shlex.quote(f"{KWARGS}.{name}=" + (text if plain else '"' + text.replace('"', '\\"') + '"'))


def planted_words():
    """Return the words of the launch, as bash takes them."""
    words = [word(name, text) for name, text in PLANTED.items()]
    words += [word(f"plain_{n}", token) for n, token in enumerate(TOKENS)]
    return words + [word(f"inner_{n}", f"cmd --with {token},x") for n, token in enumerate(TOKENS)]


def planted_script():
    """Return the script with all of them."""
    return SCRIPT + "    " + " \\\n    ".join(planted_words()) + "\n"


def leaks(found):
    """Return which named text has which secret."""
    return [(name, secret) for name, text in found.items() for secret in SECRETS if secret in text]
