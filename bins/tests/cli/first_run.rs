//! The first run on a machine: which of candle's kernels the driver has to compile for it.
#![cfg(feature = "cuda")]
use crate::common::{DAE, DBN, Program, SPARSE_AUTOENCODER, TSNE};
use std::path::Path;

/// Modules of candle's kernels, each by one of them: those that are compiled within a second or
/// two, and those that take longer or that nothing needs.
const QUICK: [(&str, &str); 4] = [
    ("affine", "affine_f32"),
    ("cast", "cast_u32_f32"),
    ("fill", "const_set_f32"),
    ("reduce", "fast_sum_f32"),
];
const SLOW: [(&str, &str); 6] = [
    ("binary", "badd_f32"),
    ("conv", "conv2d_f32"),
    ("indexing", "is_u32_f32"),
    ("sort", "asort_asc_f32"),
    ("ternary", "where_u8_f32"),
    ("unary", "uexp_f32"),
];

/// All bytes of the files below a folder.
fn bytes_below(folder: &Path) -> Vec<u8> {
    let mut bytes = vec![];
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        bytes.extend(if path.is_dir() { bytes_below(&path) } else { std::fs::read(&path).unwrap() });
    }
    bytes
}

/// The modules that the driver compiled for a default run of the program with an empty cache: what
/// it compiles it writes there, with the names of the kernels.
fn compiled_for(program: &Program) -> Vec<&'static str> {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    std::fs::create_dir(&cache).unwrap();
    let mut command = program.command(folder.path(), &["--data", "mnist-sample", "--out", "run"]);
    command.env("CUDA_CACHE_PATH", &cache).env("CUDA_CACHE_DISABLE", "0");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}: {}", program.path, String::from_utf8_lossy(&output.stderr));
    let bytes = bytes_below(&cache);
    let is_there = |kernel: &str| bytes.windows(kernel.len()).any(|name| name == kernel.as_bytes());
    QUICK.into_iter().chain(SLOW).filter(|(_, kernel)| is_there(kernel)).map(|(module, _)| module).collect()
}

#[test]
fn default_runs_have_none_of_the_slow_modules_compiled() {
    if let Err(error) = chandlery_ops::core::cuda_device(0) {
        eprintln!("skipped: {error}");
        return;
    }
    for program in [DBN, TSNE.bare(), SPARSE_AUTOENCODER.bare(), DAE.bare()] {
        let modules = compiled_for(&program);
        println!("{}: {modules:?}", program.path);
        // Every run converts types; were the names not to be read, no module would be found.
        assert!(modules.contains(&"cast"), "{}: {modules:?}", program.path);
        let slow: Vec<_> = SLOW.iter().filter(|(module, _)| modules.contains(module)).collect();
        assert!(slow.is_empty(), "{}: {slow:?} are compiled at its first run", program.path);
    }
}
