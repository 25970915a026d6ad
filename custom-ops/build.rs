//! Compiles every `kernels/*.cu` with nvcc when the feature `cuda` is on.
//!
//! Each file becomes one fat binary: machine code for the capability that is built for, which loads in
//! microseconds, and PTX, which a newer GPU compiles at first use. The capability is
//! `CUDA_COMPUTE_CAP` when set (`90`), else that of the GPU in this machine. Products and sums are not
//! contracted (`-fmad=false`), so that a kernel rounds as its CPU twin does; one that wants a fused
//! multiply-add says `fmaf`.
fn main() {
    println!("cargo::rerun-if-changed=kernels");
    #[cfg(feature = "cuda")]
    cuda::build();
}

#[cfg(feature = "cuda")]
// A build that cannot go on says why and stops.
#[allow(clippy::expect_used)]
mod cuda {
    use std::fmt::Write;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    pub fn build() {
        for variable in ["CUDA_COMPUTE_CAP", "CUDA_HOME", "CUDA_PATH", "NVCC"] {
            println!("cargo::rerun-if-env-changed={variable}");
        }
        let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
        let toolkit = cudaforge::CudaToolkit::detect()
            .unwrap_or_else(|e| panic!("the feature `cuda` needs nvcc on PATH or CUDA_HOME: {e}"));
        let arch = cudaforge::detect_compute_cap().unwrap_or_else(|e| {
            panic!("no GPU to build for; set CUDA_COMPUTE_CAP, for example 90 for an H100: {e}")
        });
        let base = arch.base();
        let mut sources: Vec<_> = std::fs::read_dir("kernels")
            .expect("kernels/ is part of the crate")
            .map(|entry| entry.expect("kernels/ is readable").path())
            .filter(|path| path.extension().is_some_and(|e| e == "cu"))
            .collect();
        sources.sort();

        let mut table = String::from("pub const FATBINS: &[(&str, &[u8])] = &[\n");
        for source in &sources {
            let name = source.file_stem().expect("a file").to_string_lossy();
            let fatbin = out.join(format!("{name}.fatbin"));
            compile(&toolkit.nvcc_path, base, source, &fatbin);
            writeln!(table, "    ({name:?}, include_bytes!({fatbin:?})),").expect("a String");
        }
        table.push_str("];\n");
        // What `__CUDA_ARCH__ / 10` was: kernels that need more are empty.
        writeln!(table, "pub const CAPABILITY: i32 = {base};").expect("a String");
        std::fs::write(out.join("fatbins.rs"), table).expect("OUT_DIR is writable");
    }

    fn compile(nvcc: &Path, capability: usize, source: &Path, fatbin: &Path) {
        let status = Command::new(nvcc)
            .args(["-fatbin", "-O3", "-std=c++17", "-lineinfo", "-fmad=false"])
            .arg(format!("-gencode=arch=compute_{capability},code=sm_{capability}"))
            .arg(format!("-gencode=arch=compute_{capability},code=compute_{capability}"))
            .arg("-o")
            .args([fatbin, source])
            .status()
            .unwrap_or_else(|e| panic!("{} does not start: {e}", nvcc.display()));
        assert!(status.success(), "nvcc could not compile {}", source.display());
    }
}
