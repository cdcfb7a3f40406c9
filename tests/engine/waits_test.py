"""Lists every wait of the library and its bindings with its limit. tests/python/launch/starts_test.py lists those of the Python package."""
# ctest: LABELS quick

import os
import re
from pathlib import Path

ROOT = Path(os.environ.get("SPARSESYNC_SOURCE_DIR", Path(__file__).parents[2]))
FOLDERS = ["kernels", "schemes", "engine", "analysis", "python/bindings"]
WAITS = re.compile(
    r"(?:\.|->)(?:wait|wait_for|wait_until|join)\("
    r"|\bsleep_(?:for|until)\("
    r"|\.pause\(\)"
    r"|(?<!\w)::poll\("
    r"|\bmpi_\.(?:init_thread|finalize|wait\w*|barrier|allgather|allreduce|bcast|recv|send|comm_dup|comm_split\w*)\("
    r"|\bcuda(?:Stream|Event|Device)Synchronize\("
)

OF_CALLER = "until: the deadline of the step, from the session"
OF_SESSION = "of a session: its phases end at its deadline"
OF_MPI = "in the MPI thread, which do_in_thread() leaves behind at its deadline"
OF_DEVICE = "work of this process on its device"
# {file: {call as written: its limit}}
LIMITS = {
    "kernels/cuda/stream.cpp": {
        "cudaStreamSynchronize(stream_)": "with a watch: the loop below; otherwise " + OF_DEVICE,
        "cudaStreamSynchronize(stream.stream_)": OF_DEVICE,
        "cudaEventSynchronize(stream_.timing_[1])": OF_DEVICE,
        "cudaEventSynchronize(event)": "without a watch: " + OF_DEVICE,
        "poll.pause()": "the watch throws at its deadline",
        "cudaEventSynchronize(handle_->event)": OF_DEVICE,
    },
    "kernels/base/device_stream.h": {"sleep_for(kAsleep)": "20 us"},
    "kernels/base/threads.cpp": {
        "helper.join()": "the helpers are stopping",
        "done_.wait(lock, [&] { return working_ == 0; })": "computation of this process",
        "wake_.wait(lock, [&] { return stopping_ || round_ != served; })": "a helper waits for work or its end",
    },
    "analysis/compare/rank_main.cpp": {"session.wait(session.announce(bucket, announced_))": OF_SESSION},
    "engine/planner/calibration/measure_cpu.cpp": {"network.join(rank)": "returns immediately"},
    "engine/session/progress_thread.cpp": {
        "thread_.join()": "the thread is stopping; its current phase ends at the deadline",
        "changed_.wait(lock, [&] { return phase.done && !phase.held; })": "the progress thread ends each phase by its deadline",
        "changed_.wait_for(lock, most, [&] { return phase.done && !phase.held; })": "most, from the caller",
        "changed_.wait(lock, [&] { return job.done; })": "the progress thread ends the phases before it by their deadlines",
        "changed_.wait(lock)": "the progress thread waits for work or its end",
        "changed_.wait_until(lock, until)": "deadline_, from the session",
    },
    "engine/session/session.cpp": {
        "engine_->progress.wait(ticket.phase())": OF_SESSION,
        "engine_->progress.wait_for(ticket.phase(), most)": "most, from the caller",
    },
    "engine/transport/local.cpp": {
        "end_.changed.wait(lock, [&] { return !is_being_read(); })": "copies by other threads of this process",
        "end_.changed.wait_until(lock, wake - kTimersAreLate)": OF_CALLER,
        "end_.changed.wait_until(lock, wake)": OF_CALLER,
    },
    "engine/transport/mpi.cpp": {
        "changed_.wait_for(lock, leaving_ + kLastWords, [&] { return ended_ || stuck_; })": "the longest deadline, and kLastWords",
        "thread_.join()": "the thread has ended",
        "changed_.wait_for(lock, deadline, [&] { return job_ == nullptr; })": "deadline, from the caller",
        "changed_.wait_for(lock, length, [&] { return poked_; })": "kLongestPause or kIdlePause",
        "mpi_.init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level)": OF_MPI,
        "mpi_.comm_dup(mpi_.comm_world, &world)": OF_MPI,
        "mpi_.comm_split_type(world, MPI_COMM_TYPE_SHARED, rank_.value, mpi_.info_null, &node)": OF_MPI,
        "mpi_.allreduce(&rank_.value, &number, 1, mpi_.int_type, mpi_.min, node)": OF_MPI,
        "mpi_.allgather(&number, 1, mpi_.int_type, nodes_.data(), 1, mpi_.int_type, world)": OF_MPI,
        "mpi_.allgather(&own, sizeof(own), mpi_.byte_type, all.data(), sizeof(own), mpi_.byte_type, world)": OF_MPI,
        "mpi_.finalize()": "in the MPI thread, which stop() leaves behind",
        "mpi_.comm_split(world_, is_member ? 0 : MPI_UNDEFINED, rank_.value, &own)": OF_MPI,
        "state_->join(members, chunks, deadline.value_or(state_->deadline()))": "deadline, from the caller",
    },
    "engine/transport/mpi_link.cpp": {"mpi_.wait(&request, MPI_STATUS_IGNORE)": "the request is cancelled or complete"},
    "engine/transport/packets/endpoint_worker.cpp": {
        "changed_.wait_until(lock, until)": OF_CALLER,
        "changed_.wait_until(lock, std::min(until, now + kPartingGrace))": OF_CALLER,
    },
    "engine/transport/nccl.cpp": {
        "poll.pause()": "until: kEnding on close, kUntilALossIsKnown after an error, otherwise the deadline of the step",
        "device_stream_->wait_for(group.headers_here)": "with a CancellationCheck, whose poll() throws at the deadline",
        "ended.wait_for(kEnding)": "kEnding",
        "thread.join()": "the thread has ended",
    },
    "engine/transport/process_group.cpp": {
        "network_->wait({&reason, 1}, until)": "kFarewell",
        "network_->wait({&header, 1}, until_woken)": "kWaking",
        "network_->wait(group->send_calls(), until)": "kUntilAnnouncedIsTaken",
        "network_->wait(group.send_calls(), until)": OF_CALLER,
        "network_->wait(calls, until)": OF_CALLER,
        "network_->wait(reason, until)": OF_CALLER,
    },
    "engine/transport/process_watch.cpp": {"::poll(watched_.data(), watched_.size(), 0)": "0"},
    "engine/transport/ucx/driver.cpp": {
        "alarm_->wait(link.descriptor(), kTick)": "kTick",
        "changed_.wait(lock, [&] { return settled_; })": "until_: the deadline of the connections",
        "thread_.join()": "the thread is stopping: leaving_ or kLastWords, and twice kClosing of the link",
    },
    "engine/transport/rendezvous/socket.cpp": {
        "::poll(polled.data(), polled.size(), wait)": "the deadline of the caller, kAnswer or kFarewell",
    },
    "engine/transport/worker_threads.cpp": {
        "sleep_for(std::chrono::milliseconds(20))": "20 ms",
        "thread.join()": "workers, whose sessions have deadlines",
    },
    "engine/planner/calibration/recording.cpp": {"changed_.wait_until(lock, until, [&] { return free_ > 0 || open_; })": OF_CALLER},
    "engine/transport/staged.cpp": {
        "done.wait()": OF_DEVICE,
        "outgoing_[message].done.wait()": OF_DEVICE,
        "stage.done.wait()": OF_DEVICE,
    },
    "analysis/cli/launch_command.cpp": {"processes.wait()": "the programs that it started, until a signal ends them"},
    "analysis/launcher.cpp": {
        "network_->join(rank)": "returns immediately",
        "world->join()": "the deadline of the world",
        "world->join(chunks)": "the deadline of the world",
    },
    "python/bindings/python_session.cpp": {
        "session.wait_for(ticket, std::chrono::milliseconds(0))": "0",
        "use().wait_for(*gather, std::chrono::milliseconds(0))": "0",
        "session.wait_for(ticket.ticket, kSignals)": "kSignals; then Python handles signals, and " + OF_SESSION,
        "calls_ended_.wait(lock, [&] { return callers_.empty() && closer_ == std::thread::id(); })": "other calls; " + OF_SESSION,
    },
    "python/bindings/session.cpp": {"sleep_for(std::chrono::milliseconds(1))": "at exit: sessions end in other threads"},
    "python/bindings/sparsifiers.cpp": {
        "changed_.wait_for(lock, most, [&] { return step_ != Step::awaited; })": "most, from the caller",
        "sparsifier_->wait_for(kSignals)": "kSignals",
        "session_.wait_until([&](const Session& session) { return sparsifier_->wait_for(kSignals) || "
        "session.is_final(last_->ticket); })": "the step's reduce; " + OF_SESSION,
    },
    "python/bindings/transports.cpp": {
        "network_->join(Rank{rank})": "returns immediately",
        "world.join(world.size(), {}, deadline)": "deadline, from the caller",
    },
}


def call_around(text: str, at: int) -> str:
    """Returns the call whose name begins at this index, from its object to its closing parenthesis, on one line."""
    owner = re.search(r"[\w.:>\[\]()-]*$", text[:at])
    assert owner
    begin = owner.start()
    while text[begin:at].count("(") - text[begin:at].count(")") > 0:  # an open parenthesis belongs to the statement
        begin = text.index("(", begin) + 1
    end, depth = text.index("(", at), 0
    while True:
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
        if depth == 0:
            break
    return re.sub(r"\s+", " ", text[begin:end]).removeprefix("std::this_thread::").lstrip("!")


def waits_in(text: str) -> set[str]:
    """Returns all calls that wait, as written."""
    without_raw_strings = re.sub(r'R"(\w*)\(.*?\)\1"', '""', text, flags=re.DOTALL)
    code = re.sub(r"//.*", "", re.sub(r'"(?:\\.|[^"\\\n])*"', '""', without_raw_strings))
    return {call_around(code, found.start()) for found in WAITS.finditer(code)}


def test_every_wait_has_a_limit() -> None:
    sources = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in {".h", ".cpp", ".cu", ".cuh"})
    assert len(sources) > 300
    found = {str(path.relative_to(ROOT)): waits_in(path.read_text(encoding="utf-8")) for path in sources}
    found = {file: calls for file, calls in found.items() if calls}
    listed = {file: set(calls) for file, calls in LIMITS.items()}
    unlisted = {file: calls - listed.get(file, set()) for file, calls in found.items() if calls - listed.get(file, set())}
    assert unlisted == {}, "add the limits of these to LIMITS"
    assert found == listed, "remove these from LIMITS: they no longer exist"


def test_a_wait_is_found() -> None:
    text = '''
      if (!changed_.wait_for(lock, most,
                             [&] { return is_over(x); })) return;  // .wait(
      check(mpi_.barrier(world_), ".join(");
      use([&] { a->b().wait(c[i].d(), e); });
      .def("wait", kWait, R"(>>> session.wait(ticket)
")");
    '''
    assert waits_in(text) == {
        "changed_.wait_for(lock, most, [&] { return is_over(x); })",
        "mpi_.barrier(world_)",
        "a->b().wait(c[i].d(), e)",
    }
