"""What a check of drafts costs beside its kernels: by parts, the copy as a node and in the first kernel."""
import sys, time
import cupy, torch
import numpy as np
from rooflab import engine
from rooflab.engine import drafts as D
from rooflab.engine.base import captured
from rooflab.ops import batch_choice, decoder_ops
from rooflab.studies import decode, decode_work

class Copy(D.Drafts):
    def __init__(self, engine, size):
        super().__init__(engine, size)
        self._pin = torch.zeros(4 + size, dtype=torch.int32, pin_memory=True)
        self._numbers = np.asarray(self._pin)
    def step(self):
        chain, state, given = self.chain, self.engine.state, self.given
        given.copy_(self._pin, non_blocking=True)
        drafts, softcap = given[4:], chain.shape.softcap
        decoder_ops.embedding(chain.weights.embedding, drafts, out=chain.residual)
        chain.layers(state.cache_k, state.cache_v, given[:1], given[1:2], self.logits)
        batch_choice.sample(self.logits, self.chosen, given[2:4], choice=self._choice, softcap=softcap)
        batch_choice.accept(state, drafts, self.chosen[1], self.logits, given, held=self._held, arrived=self._arrived, softcap=softcap)

def med(f, n):
    t = []
    for _ in range(n):
        a = time.perf_counter(); f(); t.append((time.perf_counter() - a) * 1e6)
    return sorted(t)[n // 2]

for fmt in ("int4_g128", "q8_0"):
    case = next(c for c in decode.checks_of_drafts() if c.batch == 8 and c.format == fmt and c.model == decode.MODEL)
    one, start, begin = decode_work._begun(case, engine.Paths())
    begin()
    known = decode_work.holding(one, begin, 128, 8)
    kinds = {"copy": Copy(one, 8), "new": D.Drafts(one, 8)}
    def run():
        for at in range(0, 128, 8): one.verify(known[at:at + 8])
    for turn in range(3):
        for name, d in kinds.items():
            one._drafts[8] = d
            begin(); run(); begin(); torch.cuda.synchronize()
            def whole():
                begin(); run(); torch.cuda.synchronize()
            wall = med(whole, 25) / 16
            def only():
                begin(); torch.cuda.synchronize()
            b = med(only, 25) / 16
            begin(); run(); torch.cuda.synchronize()
            rep = d._replay
            e = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            g = []
            for _ in range(9):
                e[0].record()
                for _ in range(16): rep()
                e[1].record(); torch.cuda.synchronize(); g.append(e[0].elapsed_time(e[1]) * 1e3 / 16)
            cpu = []
            for _ in range(30):
                torch.cuda.synchronize(); a = time.perf_counter(); rep(); cpu.append((time.perf_counter() - a) * 1e6)
            torch.cuda.synchronize()
            lat = []
            for _ in range(30):   # from call to answer
                torch.cuda.synchronize(); time.sleep(2e-5)
                d._answer[0] = -1; a = time.perf_counter(); rep()
                while d._answer[0] < 0: pass
                lat.append((time.perf_counter() - a) * 1e6)
            torch.cuda.synchronize()
            real = d.check; d.check = lambda ids: (0, 1)
            begin()
            py = med(lambda: one.verify(known[:8]), 500)
            d.check = real
            print(f"{fmt} {name} check {wall - b:.1f}+{b:.1f} gpu back to back {sorted(g)[4]:.1f} replay cpu {sorted(cpu)[15]:.1f} call to answer {sorted(lat)[15]:.1f} python {py:.1f}", flush=True)
    del one, start, begin, kinds
