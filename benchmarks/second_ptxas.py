"""Compiles two layers of BERT with max-autotune, without sweeper, on a GPU.

Inductor prints the seconds that the candidates of each matrix multiplication take. Try it with and
without TRITON_PTXAS_PATH.
"""

import torch
from transformers import BertConfig, BertForMaskedLM

model = BertForMaskedLM(BertConfig(num_hidden_layers=2)).cuda().train()
tokens = torch.randint(0, 30000, (16, 512), device="cuda")
compiled = torch.compile(model, mode="max-autotune-no-cudagraphs")
with torch.autocast("cuda", torch.bfloat16):
    loss = compiled(input_ids=tokens, labels=tokens).loss
loss.backward()
torch.cuda.synchronize()
