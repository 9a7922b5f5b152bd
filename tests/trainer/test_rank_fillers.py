"""An update on ranks that do not divide its rows: as on ranks that do, whatever the loss divides by."""

from collections import Counter
from functools import partial
from itertools import chain

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.utils import tensordict_utils as tu
from verl.utils.metric import Metric, reduce_metrics
from verl.utils.py_functional import append_to_dict
from verl.utils.torch_functional import entropy_from_logits, logprobs_from_logits
from verl.workers.config import CriticConfig, FSDPActorConfig, PolicyLossConfig
from verl.workers.engine.utils import prepare_micro_batches
from verl.workers.utils.losses import ppo_loss, value_loss
from verl.workers.utils.padding import left_right_2_no_padding

from trinity_compat.plugins import rank_metrics
from trinity_compat.trainer.rank_fillers import (
    FILLER,
    RankRows,
    arranged,
    in_whole_rows,
    loss_of_rows,
    mini_batch,
)

VOCABULARY, WIDTH, PROMPT, RESPONSE = 20, 6, 4, 7
MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


@pytest.fixture(autouse=True, scope="module")
def _patched():
    rank_metrics.apply()


def batch_of(count, seed=0):
    """``count`` rows of unlike lengths, one of them without a token that counts."""
    made = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCABULARY, (count, PROMPT + RESPONSE), generator=made)
    prompts = torch.randint(1, PROMPT + 1, (count, 1), generator=made)
    answers = torch.randint(1, RESPONSE + 1, (count, 1), generator=made)
    place = torch.arange(PROMPT + RESPONSE)
    attention = ((place >= PROMPT - prompts) & (place < PROMPT + answers)).long()
    mask = attention[:, PROMPT:].clone()
    mask[1] = 0
    tensors = {
        "prompts": ids[:, :PROMPT],
        "responses": ids[:, PROMPT:],
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": (attention.cumsum(-1) - 1).clamp(min=0),
        "response_mask": mask,
    }
    for name in ("old_log_probs", "ref_log_prob", "advantages", "values", "returns"):
        tensors[name] = torch.randn(count, RESPONSE, generator=made) - 2
    uids = np.array([f"u{row}" for row in range(count)], dtype=object)
    return DataProto.from_dict(tensors=tensors, non_tensors={"uid": uids})


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Linear(WIDTH, VOCABULARY))


def outputs(net, part, *, critic):
    ids = part["input_ids"]
    logits = net(ids.values())
    if critic:
        found = {"values": logits[:, 0]}
    else:
        shifted = torch.roll(ids.values(), -1)
        found = {"log_probs": logprobs_from_logits(logits, shifted), "entropy": entropy_from_logits(logits)}
    return {name: torch.nested.nested_tensor_from_jagged(each, ids.offsets()) for name, each in found.items()}


def trained(batch, loss, *, ranks, updates, of_update, micro, critic=False):
    """Parameters and metrics after ``updates`` steps on ``ranks``, as the worker and its engine compute them.

    ``micro``: rows of a micro-batch, or its tokens where it is negative.
    """
    net = model()
    columns = left_right_2_no_padding(batch.to_tensordict())
    shares = [tu.chunk_tensordict(part, updates) for part in tu.chunk_tensordict(columns, ranks)]
    metrics = {}
    for update in range(updates):
        own = [share[update] for share in shares]
        tokens = sum(int(part["loss_mask"].sum()) for part in own)
        of_ranks, losses = [], []
        for part in own:
            tu.assign_non_tensor(
                part,
                dp_size=ranks,
                batch_num_tokens=tokens,
                global_batch_size=len(part) * ranks,  # as veRL's trainer counts, with fillers
                use_dynamic_bsz=micro < 0,
                micro_batch_size_per_gpu=micro,
                max_token_len_per_gpu=-micro,
            )
            found = {}
            for each in prepare_micro_batches(part)[0]:
                value, told = loss(model_output=outputs(net, each, critic=critic), data=each, dp_group=None)
                (value / ranks).backward()
                losses.append(value.item() / ranks)
                append_to_dict(found, told)
            of_ranks.append(found)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        gathered = {name: [each[name] for each in of_ranks if name in each] for name in of_ranks[0]}
        joined = {
            name: Metric.aggregate_dp(each)
            if isinstance(each[0], Metric)
            else list(chain.from_iterable(each))
            for name, each in gathered.items()
        }
        append_to_dict(metrics, joined | {"loss": sum(losses)})
        assert len(own[0]) * ranks >= of_update
    figures = {
        name: np.mean([np.mean(one) for one in each]) if isinstance(each, list) else each
        for name, each in reduce_metrics(
            {name: list(np.ravel(each)) for name, each in metrics.items()}
        ).items()
    }
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()]), figures


def both_ways(loss, *, count, ranks, updates, micro, critic=False, is_balanced=True):
    """Outcome on one rank without fillers, and on ``ranks`` with them, for the same rows in each update."""
    batch = batch_of(count)
    of_update = count // updates
    lengths = batch.batch["attention_mask"].sum(-1)
    rows = arranged(lengths, updates=updates, ranks=ranks, micro=max(1, micro), is_balanced=is_balanced)
    parts = np.array(rows).reshape(ranks, updates, -1)
    in_order = [int(row) for update in range(updates) for row in parts[:, update].flatten() if row >= 0]
    alone = batch.select_idxs(np.array(in_order))
    given = {"updates": updates, "of_update": of_update, "critic": critic}
    spread = RankRows(rows, of_update).filled(batch)
    assert (spread.batch["response_mask"][spread.batch[FILLER]] == 0).all() and spread.batch[FILLER].any()
    return (
        trained(alone, loss, ranks=1, micro=1 if micro > 0 else micro, **given),
        trained(spread, partial(loss_of_rows, loss), ranks=ranks, micro=micro, **given),
    )


def actor(mode, loss_mode="vanilla", **given):
    config = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        loss_agg_mode=mode,
        use_kl_loss=True,
        entropy_coeff=0.01,
        policy_loss=PolicyLossConfig(loss_mode=loss_mode),
        **given,
    )
    return partial(ppo_loss, config=config)


def assert_same(one, other, *, metrics=True):
    torch.testing.assert_close(one[0], other[0], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(
        one[0], torch.cat([each.flatten() for each in model().parameters()]), atol=1e-6, rtol=0
    )
    assert one[1].keys() == other[1].keys()
    names = one[1] if metrics else ("loss", "actor/pg_loss", "actor/entropy_loss", "kl_loss")
    assert {n: other[1][n] for n in names} == pytest.approx({n: one[1][n] for n in names}, abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("count", "ranks", "updates"), [(8, 3, 1), (16, 3, 2), (14, 5, 2), (7, 6, 1)])
def test_an_update_with_fillers_is_that_of_its_rows(mode, count, ranks, updates):
    assert_same(*both_ways(actor(mode), count=count, ranks=ranks, updates=updates, micro=1))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("micro", [2, 4, -24])
def test_so_it_is_in_micro_batches_of_several_rows_or_tokens(mode, micro):
    """The means over micro-batches that veRL logs follow how they are cut, here as there."""
    assert_same(*both_ways(actor(mode), count=16, ranks=3, updates=2, micro=micro), metrics=False)


@pytest.mark.parametrize("loss_mode", ["gspo", "clip_cov", "kl_cov", "gpg", "cispo", "sapo", "dppo_tv"])
def test_no_policy_loss_sees_a_filler(loss_mode):
    """Also those with statistics of a micro-batch's tokens."""
    torch.manual_seed(0)
    assert_same(*both_ways(actor("seq-mean-token-mean", loss_mode), count=8, ranks=3, updates=1, micro=1))


@pytest.mark.parametrize("mode", MODES)
def test_a_critic_learns_from_its_rows_alone(mode):
    config = CriticConfig(strategy="fsdp2", loss_agg_mode=mode, ppo_micro_batch_size_per_gpu=1)
    loss = partial(value_loss, config=config)
    one, other = both_ways(loss, count=8, ranks=3, updates=1, micro=1, critic=True)
    assert_same(one, other)
    assert np.isfinite(one[1]["critic/vf_loss"])


@pytest.mark.parametrize("is_balanced", [True, False])
@pytest.mark.parametrize(
    ("count", "updates", "ranks", "micro"), [(24, 3, 5, 1), (14, 2, 4, 4), (6, 2, 3, 1), (64, 4, 6, 8)]
)
def test_each_update_has_its_rows_once_and_each_rank_some_of_them(count, updates, ranks, micro, is_balanced):
    lengths = torch.arange(count) ** 2 + 1
    rows = arranged(lengths, updates=updates, ranks=ranks, micro=micro, is_balanced=is_balanced)
    parts = np.array(rows).reshape(ranks, updates, -1)
    assert Counter(row for row in rows if row >= 0) == Counter(range(count))
    assert (parts >= 0).sum(axis=(0, 2)).tolist() == [count // updates] * updates
    assert (parts >= 0).any(axis=2).all() or count // updates < ranks
    assert parts.shape[2] % micro == 0


def test_what_workers_return_has_the_batch_s_order_again():
    batch = batch_of(7)
    spread = RankRows(arranged(batch.batch["attention_mask"].sum(-1), updates=1, ranks=3), 7)
    sent = spread.filled(batch)
    assert len(sent) == 9 and sent.batch["attention_mask"][sent.batch[FILLER]].sum(-1).tolist() == [2, 2]
    back = spread.unfilled(sent)
    assert list(back.non_tensor_batch["uid"]) == list(batch.non_tensor_batch["uid"])
    assert torch.equal(back.batch["old_log_probs"], batch.batch["old_log_probs"])
    assert FILLER not in batch.batch and RankRows(None, 7).filled(batch) is batch


def test_a_filler_among_rows_with_images_keeps_its_images():
    """Some ranks would else compute no image, and the others would wait for them."""
    batch = batch_of(3)
    media = [{"pixel_values": torch.ones(1)}] * 3
    batch.non_tensor_batch["multi_modal_inputs"] = np.fromiter(media, object, 3)
    sent = RankRows([0, 1, 2, -1], 3).filled(batch)
    assert torch.equal(sent.batch["attention_mask"][3], batch.batch["attention_mask"][2])
    assert sent.batch["response_mask"][3].sum() == 0
    assert sent.non_tensor_batch["multi_modal_inputs"][3] is media[2]


def test_the_trainer_counts_updates_with_their_fillers_for_the_call_alone():
    config = OmegaConf.create(
        {"actor_rollout_ref": {"actor": {"ppo_mini_batch_size": 2}, "rollout": {"n": 4}}}
    )
    role, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    with RankRows([*range(16), -1, -1], 8).counted(config, role):
        assert role.ppo_mini_batch_size * rollout.n == 9
    with pytest.raises(KeyError), mini_batch(config, role, 5):
        raise KeyError
    assert (role.ppo_mini_batch_size, rollout.n) == (2, 4)


def test_veRL_s_check_gets_a_train_batch_that_its_gpus_divide():
    actor = {"strategy": "fsdp2", "ppo_mini_batch_size": 32, "shuffle": False}
    given = {"trainer": {"nnodes": 1, "n_gpus_per_node": 6}, "data": {"train_batch_size": 64}}
    config = OmegaConf.create(given | {"actor_rollout_ref": {"actor": actor}})
    assert (in_whole_rows(config).data.train_batch_size, config.data.train_batch_size) == (66, 64)
    config.actor_rollout_ref.actor.shuffle = True
    assert in_whole_rows(config).data.train_batch_size == 64
