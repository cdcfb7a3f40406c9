// Doxygen leaves out the functions of a namespace that has no comment.

/// The library and its laboratory.
namespace sparsesync {}
