"""PyTorch package: ``DistributedDataParallel``, optimizer wrappers, sparsifiers, and recorders for training runs."""

from sparsesync.torch.distributed import DistributedDataParallel
from sparsesync.torch.hook import CommHookState, comm_hook
from sparsesync.torch.launch import LocalMember, local_group
from sparsesync.torch.model_recording import ModelRecording, record_model
from sparsesync.torch.optimizer.deferred_steps import wrap_optimizer
from sparsesync.torch.optimizer.loss_scaler import LossScaler
from sparsesync.torch.recording import Recording, record_trace
from sparsesync.torch.sparsify.sparsifier_state import resharded
from sparsesync.torch.sparsify.sparsifiers import DGC, CoarseGrained, Sparsifier, Threshold, TopK

__all__ = [
    "DGC",
    "CoarseGrained",
    "CommHookState",
    "DistributedDataParallel",
    "LocalMember",
    "LossScaler",
    "ModelRecording",
    "Recording",
    "Sparsifier",
    "Threshold",
    "TopK",
    "comm_hook",
    "local_group",
    "record_model",
    "record_trace",
    "resharded",
    "wrap_optimizer",
]
