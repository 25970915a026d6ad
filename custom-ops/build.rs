//! Compiles every `kernels/ROOM/*.cu` with nvcc when the feature `cuda` is on.
//!
//! Each file becomes one fat binary: for every capability that is built for machine code, which
//! loads in microseconds, and PTX, which a newer GPU compiles at first use. Files in
//! `kernels/ROOM/sm_90a` use instructions of capability 9.0 alone and become machine code for it
//! only, where 9.0 is among the capabilities.
//!
//! The capabilities are those of `CHANDLERY_CUDA_CAPABILITIES` (`80,86,89,90,120`), else
//! `CUDA_COMPUTE_CAP` (`90`), which candle's kernels are compiled for as well, else that of the GPU
//! in this machine. Products and sums are not contracted (`-fmad=false`), so that a kernel rounds
//! as its CPU twin does; one that wants a fused multiply-add says `fmaf`.
//!
//! nvcc itself takes further arguments from `NVCC_PREPEND_FLAGS` and `NVCC_APPEND_FLAGS`: with
//! `-Ofc max` in the latter, a build that will not run takes a fraction of the time.
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
    use std::sync::Mutex;

    /// Kernels need the 16-bit tensor cores and asynchronous copies of this one.
    const OLDEST: usize = 80;

    /// Further arguments, which nvcc reads by itself.
    const FLAGS: [&str; 2] = ["NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"];

    /// A source, the name of its kernels, and what nvcc is told of architectures.
    struct Job {
        source: PathBuf,
        name: String,
        architectures: Vec<String>,
    }

    pub fn build() {
        let others = ["CHANDLERY_CUDA_CAPABILITIES", "CUDA_COMPUTE_CAP", "CUDA_HOME", "CUDA_PATH", "NVCC"];
        for variable in FLAGS.iter().chain(&others) {
            println!("cargo::rerun-if-env-changed={variable}");
        }
        let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
        println!("cargo::rerun-if-env-changed=DOCS_RS");
        if std::env::var_os("DOCS_RS").is_some() {
            return write_table(&out, &[], &[]); // docs.rs has no nvcc, and nothing is run there
        }
        let toolkit = cudaforge::CudaToolkit::detect()
            .unwrap_or_else(|e| panic!("the feature `cuda` needs nvcc on PATH or CUDA_HOME: {e}"));
        let capabilities = capabilities();

        let everywhere: Vec<_> = capabilities
            .iter()
            .flat_map(|c| {
                [format!("arch=compute_{c},code=sm_{c}"), format!("arch=compute_{c},code=compute_{c}")]
            })
            .collect();
        let only = ["arch=compute_90a,code=sm_90a".to_owned()];
        let mut jobs = vec![];
        for room in entries(Path::new("kernels")) {
            jobs.extend(self::jobs(&room, "", &everywhere));
            if capabilities.contains(&90) {
                jobs.extend(self::jobs(&room.join("sm_90a"), "sm_90a/", &only));
            }
        }
        jobs.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(two) = jobs.windows(2).find(|two| two[0].name == two[1].name) {
            let [a, b] = [&two[0], &two[1]].map(|job| job.source.display());
            panic!("kernels go by the names of their files, got {a} and {b}; rename one");
        }

        write_table(&out, &jobs, &capabilities);

        // As many at a time as cargo allows.
        let workers = std::env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
        let waiting = Mutex::new(jobs.iter());
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    loop {
                        let next = waiting.lock().expect("no worker panics with the lock").next();
                        let Some(job) = next else { break };
                        compile(&toolkit.nvcc_path, job, &fatbin(&out, job));
                    }
                });
            }
        });
    }

    /// Writes what the crate includes: the fat binaries by name, and what they were built for.
    fn write_table(out: &Path, jobs: &[Job], capabilities: &[usize]) {
        let mut table = String::from("pub const FATBINS: &[(&str, &[u8])] = &[\n");
        for job in jobs {
            let name = &job.name;
            writeln!(table, "    ({name:?}, include_bytes!({:?})),", fatbin(out, job)).expect("a String");
        }
        table.push_str("];\n");
        writeln!(table, "pub const CAPABILITIES: &[u32] = &{capabilities:?};").expect("a String");
        std::fs::write(out.join("fatbins.rs"), table).expect("OUT_DIR is writable");
    }

    /// What to build for, sorted, each once.
    fn capabilities() -> Vec<usize> {
        let list = match std::env::var("CHANDLERY_CUDA_CAPABILITIES") {
            Ok(list) => list,
            Err(_) => {
                let arch = cudaforge::detect_compute_cap().unwrap_or_else(|e| {
                    panic!("no GPU to build for; set CUDA_COMPUTE_CAP, for example 90 for an H100: {e}")
                });
                arch.base().to_string()
            }
        };
        let mut all: Vec<usize> = list
            .split(',')
            .map(|one| match one.trim().parse() {
                Ok(capability) if capability >= OLDEST => capability,
                _ => panic!(
                    "capabilities must be a list such as 80,90, each at least {OLDEST} (Ampere), got {one:?} in {list:?}"
                ),
            })
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// What lies in a folder; nothing where there is none.
    fn entries(folder: &Path) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(folder) else { return vec![] };
        entries.map(|entry| entry.expect("the folder is readable").path()).collect()
    }

    /// The sources of a folder. Kernels go by the names of their files, whatever the room.
    fn jobs(folder: &Path, prefix: &str, architectures: &[String]) -> Vec<Job> {
        let sources = entries(folder).into_iter().filter(|path| path.extension().is_some_and(|e| e == "cu"));
        let job = |source: PathBuf| {
            let stem = source.file_stem().expect("a file").to_string_lossy();
            let name = format!("{prefix}{stem}");
            Job { name, source, architectures: architectures.to_vec() }
        };
        sources.map(job).collect()
    }

    fn fatbin(out: &Path, job: &Job) -> PathBuf {
        out.join(format!("{}.fatbin", job.name.replace('/', "-")))
    }

    /// Compiles a source, unless the fat binary is newer than all files that it was made of, and
    /// they and the arguments are the same. Files are the same where the folder is: checkouts that
    /// share a target folder compile their own.
    fn compile(nvcc: &Path, job: &Job, fatbin: &Path) {
        let (files, notes) = (fatbin.with_extension("d"), fatbin.with_extension("arguments"));
        let architectures = job.architectures.iter().map(|arch| format!("-gencode={arch}"));
        let arguments: Vec<String> =
            ["-fatbin", "-O3", "-std=c++17", "-lineinfo", "-fmad=false", "-Ikernels"]
                .map(str::to_owned)
                .into_iter()
                .chain(architectures)
                .collect();
        let flags = FLAGS.map(|variable| std::env::var(variable).unwrap_or_default());
        let sources = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
        let noted = format!("{sources}\n{}\n{}\n{}", nvcc.display(), arguments.join("\n"), flags.join("\n"));
        if std::fs::read_to_string(&notes).is_ok_and(|before| before == noted) && is_newer(fatbin, &files) {
            return;
        }
        let status = Command::new(nvcc)
            .args(&arguments)
            .args([Path::new("-MD"), Path::new("-MF"), &files, Path::new("-o"), fatbin, &job.source])
            .status()
            .unwrap_or_else(|e| panic!("{} does not start: {e}", nvcc.display()));
        assert!(status.success(), "nvcc could not compile {}", job.source.display());
        std::fs::write(notes, noted).expect("OUT_DIR is writable");
    }

    /// Whether a file is newer than all that its list of sources, in the form of make, names.
    fn is_newer(file: &Path, list: &Path) -> bool {
        let time = |path: &Path| std::fs::metadata(path).and_then(|about| about.modified()).ok();
        let (Some(made), Ok(list)) = (time(file), std::fs::read_to_string(list)) else { return false };
        let Some((_, sources)) = list.split_once(':') else { return false };
        let mut sources = sources.split_whitespace().filter(|&word| word != "\\");
        sources.all(|source| time(Path::new(source)).is_some_and(|changed| changed < made))
    }
}
