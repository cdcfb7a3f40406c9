"""Optimizers that update each parameter when its gradient arrives have the weights of a training that waits for all gradients."""
# ctest: SLOW any_optimizer

from __future__ import annotations

import contextlib
import itertools
import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

from schedule_cases import batch, expect_as_sequential, loss_of, optimizers_of, run, sgd, train, weights  # noqa: E402 (needs torch)
from sparsesync.torch import DistributedDataParallel, module_state, wrap_optimizer  # noqa: E402 (needs torch)
from sparsesync.torch.schedule import bucket  # noqa: E402 (needs torch)
from workers import good, run_workers, seeded  # noqa: E402 (needs torch)

OPTIMIZERS = {
    "SGD": sgd,
    "SGD, foreach": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, foreach=True),
    "Adam": lambda groups: torch.optim.Adam(groups, lr=0.01),
    "Adam, fused": lambda groups: torch.optim.Adam(groups, lr=0.01, fused=True),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.01, amsgrad=True),
    "Adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.05, lr_decay=0.1),
    "Adadelta": lambda groups: torch.optim.Adadelta(groups, lr=0.5),
    "Adamax": lambda groups: torch.optim.Adamax(groups, lr=0.01),
    "NAdam": lambda groups: torch.optim.NAdam(groups, lr=0.01),
    "RAdam": lambda groups: torch.optim.RAdam(groups, lr=0.01),
    "ASGD": lambda groups: torch.optim.ASGD(groups, lr=0.05),
    "RMSprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01, momentum=0.9),
    "Rprop": lambda groups: torch.optim.Rprop(groups, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_with_several_groups(name):
    def work(rank, ddp, module):
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, OPTIMIZERS[name])]
        train(ddp, rank, optimizers)
        return weights(module)

    expect_as_sequential(work)


@pytest.mark.parametrize("before", [True, False])
def test_schedulers_change_the_rate_of_later_steps(before):
    def work(rank, ddp, module):
        optimizers = optimizers_of(module, sgd)
        schedulers = []
        for wraps in (False, True) if before else (True, False):
            for each in optimizers:
                if wraps:
                    wrap_optimizer(each, ddp)
                else:
                    schedulers.append(torch.optim.lr_scheduler.ExponentialLR(each, 0.5))
        train(ddp, rank, optimizers, schedulers=schedulers)
        return weights(module)

    with warnings_are_errors():
        expect_as_sequential(work)


@contextlib.contextmanager
def warnings_are_errors():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


@pytest.mark.parametrize("raised", [KeyboardInterrupt, TimeoutError])
@pytest.mark.parametrize("of", [bucket, module_state])
def test_a_wait_that_a_signal_ends_loses_no_update(of, raised, monkeypatch):
    waits, left = of.wait_for_step, {}  # waits of threads that end by themselves

    def wait(*given):
        own = threading.get_ident()
        if own in left:
            left[own] -= 1
            if left[own] < 0:
                del left[own]
                raise raised
        waits(*given)

    monkeypatch.setattr(of, "wait_for_step", wait)

    def work(of_signals):
        def on_worker(rank, ddp, module):
            optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
            for step in range(6):
                for each in optimizers:
                    each.zero_grad()
                loss_of(ddp, batch(rank, step), step).backward()
                for each in optimizers:
                    each.step()
                if of_signals and rank == 0 and step > 0:
                    left[threading.get_ident()] = 0 if of is module_state else step % 3
                    with pytest.raises(raised):
                        ddp.state_dict()
            return ddp.state_dict()

        return run(on_worker, "dear")

    for told, expected in zip(work(True), work(False), strict=True):
        for name, value in expected.items():
            assert torch.equal(told[name], value), name


def test_gradients_accumulate_over_several_passes():
    def work(rank, ddp, module):
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
        for step in range(4):
            for each in optimizers:
                each.zero_grad()
            for part in range(3):
                with ddp.no_sync() if part < 2 else contextlib.nullcontext():
                    loss_of(ddp, batch(rank, 3 * step + part), step).backward()
            for each in optimizers:
                each.step()
        ddp.synchronize()
        return weights(module)

    expect_as_sequential(work)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("of", ["optimizer", "ddp", "module", "nobody"])
def test_gradients_are_cleared_where_they_are_after_their_step(of, set_to_none):
    def work(rank, ddp, module):
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
        clearing = {"optimizer": optimizers, "ddp": [ddp], "module": [module], "nobody": []}[of]
        for step in range(4):
            loss_of(ddp, batch(rank, step), step).backward()
            for each in optimizers:
                each.step()
            for each in clearing:
                each.zero_grad(set_to_none=set_to_none)
        left = {f"{name}, gradient": each.grad for name, each in module.named_parameters()}
        if of != "nobody":
            assert all(each is None or (not set_to_none and not each.to_dense().any()) for each in left.values())
        return {**weights(module), **{name: each for name, each in left.items() if each is not None and not each.is_sparse}}

    expect_as_sequential(work)


def test_clipping_by_the_global_norm():
    def work(rank, ddp, module):
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
        dense = [each for name, each in module.named_parameters() if name != "table.weight"]
        norms = []
        for step in range(4):
            for each in optimizers:
                each.zero_grad()
            loss_of(ddp, batch(rank, step), step).backward()
            norms.append(torch.nn.utils.clip_grad_norm_(dense, 0.1))
            for each in optimizers:
                each.step()
        return {**weights(module), "norms": torch.stack(norms)}

    expect_as_sequential(work)


def test_scaled_losses_and_skipped_steps():
    """torch.amp's scaler skips a step if gradients are infinite on some worker."""

    def work(rank, ddp, module):
        optimizer = wrap_optimizer(sgd([each for name, each in module.named_parameters() if name != "table.weight"]), ddp)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
        scales = []
        for step in range(5):
            ddp.zero_grad()
            loss = loss_of(ddp, batch(rank, step), step)
            if step == 2 and rank == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        assert scales == [256, 512, 256, 256, 512]
        return weights(module)

    expect_as_sequential(work)


def test_autocast():
    def work(rank, ddp, module):
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
        for step in range(4):
            for each in optimizers:
                each.zero_grad()
            # Threads of a process share the cache and clear each other's entries. A weight that is used twice would be cast once or twice.
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                loss = loss_of(ddp, batch(rank, step), step)
            loss.backward()
            for each in optimizers:
                each.step()
        ddp.synchronize()
        return weights(module)

    expect_as_sequential(work)


def test_an_optimizer_that_is_not_wrapped_waits():
    def work(rank, ddp, module):
        optimizers = optimizers_of(module, sgd)
        train(ddp, rank, optimizers)
        return weights(module)

    expect_as_sequential(work)


def test_steps_with_a_closure_or_hooks_or_of_an_optimizer_that_looks_at_all_parameters_wait():
    def work(rank, ddp, module):
        parameters = [each for name, each in module.named_parameters() if name != "table.weight"]
        calls = itertools.count()
        hooked = sgd(parameters)
        hooked.register_step_post_hook(lambda *_: next(calls))
        optimizers = [wrap_optimizer(hooked, ddp), wrap_optimizer(torch.optim.LBFGS(parameters, lr=0.01, max_iter=2), ddp)]
        for step in range(3):

            def closure(step=step):
                ddp.zero_grad()
                loss = loss_of(ddp, batch(rank, step), step)
                loss.backward()
                return loss

            closure()
            hooked.step()
            optimizers[1].step(closure)
        assert next(calls) == 3
        return weights(module)

    expect_as_sequential(work)


class Watching(torch.optim.SGD):
    """Records the grad mode in which its steps run."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.modes = set()

    @torch.no_grad()
    def step(self, closure=None):
        self.modes.add((torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()))
        return super().step(closure)


@pytest.mark.parametrize("mode", [lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False), torch.inference_mode])
def test_updates_are_not_made_in_the_mode_of_the_pass_that_waits_for_them(mode):
    def work(rank, ddp, module):
        optimizer = wrap_optimizer(Watching(module.parameters(), lr=0.05, momentum=0.9), ddp, per_parameter=True)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(ddp, batch(rank, step), step).backward()
            optimizer.step()
            with mode():
                loss_of(ddp, batch(rank, step), step)
        ddp.synchronize()
        assert optimizer.modes == {(False, False)}
        return weights(module)

    expect_as_sequential(work)


def test_state_hooks_exist_only_while_updates_are_pending():
    def work(rank, ddp, module):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        loss_of(ddp, batch(rank, 0), 0).backward()
        optimizer.step()
        assert not any(each._state_dict_pre_hooks for each in module.modules())

    run(work, "lazy")


@pytest.mark.parametrize("scripts", ["part", "whole"])
def test_modules_that_are_scripted(scripts):
    def trained(what):
        def work(rank, member):
            with seeded(5):
                first = torch.nn.Sequential(torch.nn.Linear(4, 4))
                module = torch.nn.Sequential(torch.jit.script(first) if what == "part" else first, torch.nn.Linear(4, 1))
                module = torch.jit.script(module) if what == "whole" else module
            with DistributedDataParallel(module, member, schedule="dear", scheme="balanced") as ddp:
                optimizer = wrap_optimizer(torch.optim.SGD(module.parameters(), lr=0.01), ddp)
                for step in range(4):
                    optimizer.zero_grad()
                    ddp(torch.full((2, 4), float(rank + step))).sum().backward()
                    optimizer.step()
                return [each.clone() for each in ddp.state_dict().values()]

        return good(run_workers(2, work))

    plain = trained("nothing")
    for result in trained(scripts):
        for each, expected in zip(result, plain[0], strict=True):
            torch.testing.assert_close(each, expected)
