"""``trainer.v1.sampler.custom_sampler`` for a stock run of v1: veRL's own, each train batch kept.

veRL's own returns the rows in the order in which their answers were finished. Here those of a prompt follow
each other, as they do in our trainer, since the order decides which rows share a mini-batch.
"""

import transfer_queue
from recording import OF_A_TEACHER, OF_RESPONSES, keep
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

COLUMNS = ["prompts", "responses", *OF_RESPONSES]


class RecordingBuffer(ReplayBuffer):
    def sample(self, global_steps, partition_id, batch_size):
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        if partition_id == "train":
            place = {uid: number for number, uid in enumerate(self.prompt_global_steps[partition_id])}
            keys = [key.split("_") for key in batch.keys]
            batch.reorder(sorted(range(len(keys)), key=lambda row: (place[keys[row][0]], int(keys[row][1]))))
            rows = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=partition_id)
            kept = [{name: rows[name][row].clone() for name in COLUMNS} for row in range(len(keys))]
            for place, one in enumerate(kept):
                # Row i of a teacher describes token i + 1.
                first = len(one["prompts"]) - 1
                of_responses = slice(first, first + len(one["responses"]))
                one |= {
                    name: rows[name][place][of_responses].clone() for name in OF_A_TEACHER if name in rows
                }
            keep(kept, global_steps)
        return batch, metrics
