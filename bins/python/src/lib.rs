//! The extension module `chandlery._chandlery`: what the Python code beside it is written on.
//!
//! Arrays are copied in and out, on a GPU by DLPack; work runs without the interpreter's lock and
//! looks for Ctrl-C, and errors are Python's exceptions with the texts of the library.
//! Configurations are the JSON texts that the library stores.
mod arrays;
mod codes;
mod device;
mod errors;
mod model;
mod models;
mod tensors;
mod trainer;
mod trainers;
mod tsne;

use pyo3::prelude::*;

#[pymodule(gil_used = true)]
mod _chandlery {
    #[pymodule_export]
    use super::codes::{first_atoms, knn_graph, lasso, omp, pca, project};
    #[pymodule_export]
    use super::model::Model;
    #[pymodule_export]
    use super::tensors::Tensor;
    #[pymodule_export]
    use super::trainer::Trainer;
    #[pymodule_export]
    use super::tsne::{tsne, tsne_transform};
    #[pymodule_export]
    const HAS_CUDA: bool = cfg!(feature = "cuda");
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
