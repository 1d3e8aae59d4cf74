"""C++ kernels, compiled into the extension module `tamis._native`; reach them through `tamis.kernels.dispatch`."""
