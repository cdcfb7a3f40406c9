"""In a process that cannot start more threads, an error of sparsesync says so, and existing objects keep working."""
# ctest: LABELS quick counted

from bindings_support import python

NO_MORE_THREADS = """
import resource, sparsesync
end = sparsesync.LocalNetwork(1).join(0)
unlimited = resource.getrlimit(resource.RLIMIT_AS)
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (4 << 20), unlimited[1]))  # less than a thread's stack
try:
    sparsesync.Session(end)
except sparsesync.Error as error:
    said = str(error)
resource.setrlimit(resource.RLIMIT_AS, unlimited)
print(said)
with sparsesync.Session(sparsesync.LocalNetwork(1).join(0)) as session:
    session.barrier()
"""


def test_a_thread_that_cannot_be_started_is_an_error_that_says_so():
    done = python(NO_MORE_THREADS)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        "the progress thread of a session could not be started: Resource temporarily unavailable: allow more threads (ulimit -u, "
    )
