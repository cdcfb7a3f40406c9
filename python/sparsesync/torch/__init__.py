"""PyTorch package: ``DistributedDataParallel``, sparse all-reduces, optimizer wrappers, sparsifiers, and recorders for training runs.

Importing it registers the torch.distributed backend ``sparsesync``, and ``init_method="launcher://"`` for processes of srun and PMI.
"""

from sparsesync.torch import backend as _backend
from sparsesync.torch import launchers as _launchers
from sparsesync.torch.backend import BackendOptions
from sparsesync.torch.distributed import DistributedDataParallel
from sparsesync.torch.explain import explain
from sparsesync.torch.functional import all_reduce
from sparsesync.torch.hook import CommHookState, comm_hook
from sparsesync.torch.launch import LocalMember, local_group
from sparsesync.torch.model_recording import ModelRecording, record_model
from sparsesync.torch.optimizer.deferred_steps import wrap_optimizer
from sparsesync.torch.optimizer.loss_scaler import LossScaler
from sparsesync.torch.parameter_sync import GradientHooks, synchronize
from sparsesync.torch.recording import Recording, record_trace
from sparsesync.torch.sparsify.sparsifier_state import resharded
from sparsesync.torch.sparsify.sparsifiers import DGC, CoarseGrained, Sparsifier, Threshold, TopK

__all__ = [
    "DGC",
    "BackendOptions",
    "CoarseGrained",
    "CommHookState",
    "DistributedDataParallel",
    "GradientHooks",
    "LocalMember",
    "LossScaler",
    "ModelRecording",
    "Recording",
    "Sparsifier",
    "Threshold",
    "TopK",
    "all_reduce",
    "comm_hook",
    "explain",
    "local_group",
    "record_model",
    "record_trace",
    "resharded",
    "synchronize",
    "wrap_optimizer",
]

_backend.register()
_launchers.register()
