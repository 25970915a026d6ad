//! Several processes that train together on the CPU: started by the environment of each launcher or
//! by `--gpus`, interrupted, killed, stopped and resumed.
#![cfg(unix)]

use crate::common::{DBN_ON_CPU, TSNE, metrics, number, results, weights};
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// All must have ended so long after one of them is gone.
const ENDED: Duration = Duration::from_secs(15);

/// A network to fine-tune, in `base` of the folder.
fn base() -> TempDir {
    static BASE: OnceLock<TempDir> = OnceLock::new();
    let base = BASE.get_or_init(|| {
        let folder = TempDir::new().unwrap();
        let args = ["train", "--hidden", "24", "--epochs", "1", "--out", "base"];
        DBN_ON_CPU.succeed(folder.path(), &args);
        folder
    });
    let folder = TempDir::new().unwrap();
    assert!(
        Command::new("cp")
            .arg("-r")
            .args([base.path().join("base"), folder.path().into()])
            .status()
            .unwrap()
            .success()
    );
    folder
}

/// Fine-tunes it for so many epochs into a folder.
fn fine_tune<'a>(out: &'a str, epochs: &'a str) -> Vec<&'a str> {
    vec!["fine-tune", "base", "--classify", "--epochs", epochs, "--out", out]
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// What torchrun tells a process.
fn torchrun(rank: usize, world: usize, port: u16) -> Vec<(&'static str, String)> {
    let at = [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", world), ("MASTER_PORT", port.into())];
    let numbers = at.map(|(name, value)| (name, value.to_string()));
    numbers.into_iter().chain([("MASTER_ADDR", "127.0.0.1".to_owned())]).collect()
}

fn spawn(folder: &Path, args: &[&str], variables: &[(&str, String)]) -> Child {
    let mut command = DBN_ON_CPU.command(folder, args);
    command.envs(variables.iter().map(|(name, value)| (*name, value)));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Two processes with the environment of torchrun.
fn two(folder: &Path, args: &[&str]) -> [Child; 2] {
    let port = free_port();
    [0, 1].map(|rank| spawn(folder, args, &torchrun(rank, 2, port)))
}

/// How both ended: exit code, standard output, standard error.
fn ended(both: [Child; 2]) -> [(Option<i32>, String, String); 2] {
    both.map(|child| {
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8(text).unwrap());
        (status.code(), stdout, stderr)
    })
}

#[track_caller]
fn succeed(both: [Child; 2]) -> String {
    let [(code, said, errors), (other_code, other_said, other_errors)] = ended(both);
    assert_eq!((code, other_code), (Some(0), Some(0)), "{errors}\n{other_errors}");
    assert_eq!((other_said.as_str(), other_errors.as_str()), ("", ""), "only rank 0 says something");
    said
}

/// Waits until a run has written so many lines of metrics.
#[track_caller]
fn wait_for_lines(run: &Path, n: usize) {
    let until = Instant::now() + Duration::from_secs(120);
    while fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default().lines().count() < n {
        assert!(Instant::now() < until, "no {n} lines in {}", run.display());
        sleep(Duration::from_millis(5));
    }
}

fn signal(child: &Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn each_launcher_starts_ranks_that_learn_what_one_learns() {
    let folder = base();
    let at = folder.path();
    DBN_ON_CPU.succeed(at, &fine_tune("one", "2"));
    let said = succeed(two(at, &fine_tune("torchrun", "2")));
    assert!(said.contains("epoch 2/2"), "{said}");

    let job = u64::from(free_port()) * 4096;
    let srun = |rank: usize| {
        let numbers = [("SLURM_PROCID", rank), ("SLURM_LOCALID", rank), ("SLURM_STEP_NUM_TASKS", 2)];
        let numbers = numbers.map(|(name, value)| (name, value.to_string()));
        let job = [("SLURM_JOB_ID", (job + u64::from(std::process::id() % 4000)).to_string())];
        let hosts = [("SLURM_STEP_NODELIST", "localhost".to_owned())];
        numbers.into_iter().chain(job).chain(hosts).collect::<Vec<_>>()
    };
    let mpirun = |rank: usize| {
        let numbers = [
            ("OMPI_COMM_WORLD_RANK", rank),
            ("OMPI_COMM_WORLD_LOCAL_RANK", rank),
            ("OMPI_COMM_WORLD_SIZE", 2),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", 2),
        ];
        let job = [("PMIX_NAMESPACE", format!("prterun-{}@1", std::process::id()))];
        numbers.map(|(name, value)| (name, value.to_string())).into_iter().chain(job).collect::<Vec<_>>()
    };
    succeed([0, 1].map(|rank| spawn(at, &fine_tune("srun", "2"), &srun(rank))));
    succeed([0, 1].map(|rank| spawn(at, &fine_tune("mpirun", "2"), &mpirun(rank))));
    let gpus = [&fine_tune("gpus", "2")[..], &["--gpus", "2"]].concat();
    let said = DBN_ON_CPU.succeed(at, &gpus);
    assert_eq!(said.matches("epoch 2/2").count(), 1, "{said}");

    let one = results(&at.join("one"));
    for run in ["torchrun", "srun", "mpirun", "gpus"] {
        assert!(weights(&at.join(run)) == weights(&at.join("torchrun")), "{run}: other bits");
        let of_run = results(&at.join(run));
        for field in ["training_error", "test_error"] {
            let [a, b] = [&one, &of_run].map(|of| of[field].as_f64().unwrap_or(f64::NAN));
            assert!((a - b).abs() < 2e-3, "{run} {field}: {b}, and {a} of one rank");
        }
    }
}

#[test]
fn ranks_share_patches_and_maps_and_a_run_goes_on_with_another_number() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    for (name, layers) in [("patches", "patch:8/4x4,dense:12"), ("maps", "conv:9x12/pool2,dense:12")] {
        let [one, three, on] = ["one", "three", "on"].map(|run| format!("{name}-{run}"));
        let train = ["train", "--layers", layers, "--epochs", "1", "--max-rows", "620"];
        DBN_ON_CPU.succeed(at, &[&train[..], &["--out", &one]].concat());
        DBN_ON_CPU.succeed(at, &[&train[..], &["--out", &three, "--gpus", "3"]].concat());
        let [alone, of_three] = [&one, &three].map(|run| metrics(&at.join(run)));
        assert_eq!(alone.len(), of_three.len(), "{name}");
        // What rounding is to the lowest layer moves the small one on top more.
        for ((a, b), most) in alone.iter().zip(&of_three).zip([1e-5, 1e-3]) {
            let [a, b] = [a, b].map(|line| number(line, "reconstruction_error"));
            assert!((a - b).abs() < most * a, "{name}: {b}, and {a} of one rank");
        }
        // A checkpoint of three ranks, for two.
        fs::rename(at.join(&three), at.join(&on)).unwrap();
        let resume = ["train", "--resume", &on, "--epochs", "2", "--gpus", "2"];
        let said = DBN_ON_CPU.succeed(at, &resume);
        assert!(said.contains("epoch 2/2"), "{said}");
    }
}

#[test]
fn rows_divided_by_processes_learn_what_one_learns_and_a_run_goes_on_with_divided_units() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    let run = |out: &'static str, more: &[&'static str]| {
        // 394 rows, of which the last minibatch has 4: one process has none of these.
        let size = ["--max-rows", "414", "--batch", "26", "--hidden", "24,20", "--epochs", "2"];
        [&["train", "--out", out, "--persistent", "--divide", "rows"][..], &size, more].concat()
    };
    DBN_ON_CPU.succeed(at, &run("one", &[]));
    let said = succeed(two(at, &run("two", &[])));
    assert_eq!(said.matches("epoch 2/2").count(), 2, "{said}");
    // Each process reads its own rows.
    DBN_ON_CPU.succeed(at, &run("streamed", &["--gpus", "2", "--resident-bytes", "0"]));
    assert!(
        weights(&at.join("streamed")) == weights(&at.join("two")),
        "of rows that are streamed: other bits"
    );
    // Stopped in the second epoch of the first layer.
    let stopped = run("on", &["--gpus", "2", "--stop-after-steps", "20"]);
    let Output { status, stderr, .. } = spawn(at, &stopped, &[]).wait_with_output().unwrap();
    assert_eq!(status.code(), Some(130), "{}", String::from_utf8_lossy(&stderr));
    DBN_ON_CPU.succeed(at, &["train", "--resume", "on", "--gpus", "3", "--divide", "units"]);
    let one = metrics(&at.join("one"));
    for name in ["two", "on"] {
        let of_run = metrics(&at.join(name));
        assert_eq!(of_run.len(), one.len(), "{name}");
        for (a, b) in one.iter().zip(&of_run) {
            let [a, b] = [a, b].map(|line| number(line, "reconstruction_error"));
            assert!((a - b).abs() < 1e-2 * a, "{name}: {b}, and {a} of one rank");
        }
    }
    // Too few rows for so many.
    let refused = run("few", &["--gpus", "8"]);
    let Output { status, stderr, .. } = spawn(at, &refused, &[]).wait_with_output().unwrap();
    let errors = String::from_utf8(stderr).unwrap();
    let want = "batch must be at least 29 for 8 ranks, got 26";
    assert!(status.code() == Some(1) && errors.contains(want), "{errors}");
}

#[test]
fn up_down_by_two_processes_is_that_of_one_and_its_chains_go_on_with_three() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    let base = ["train", "--hidden", "24,20", "--epochs", "1", "--max-rows", "414", "--out", "base"];
    DBN_ON_CPU.succeed(at, &base);
    let run = |out: &'static str, more: &[&'static str]| {
        // 394 rows: 13 chains, and a last minibatch of 4 rows, of which one process has none.
        let size = ["--max-rows", "414", "--batch", "13", "--top-epochs", "2", "--epochs", "2"];
        [&["up-down", "base", "--out", out][..], &size, more].concat()
    };
    DBN_ON_CPU.succeed(at, &run("one", &[]));
    let said = succeed(two(at, &run("two", &[])));
    assert_eq!(said.matches("epoch 2/2").count(), 2, "{said}");
    DBN_ON_CPU.succeed(at, &run("again", &["--gpus", "2"]));
    assert!(weights(&at.join("again")) == weights(&at.join("two")), "another run of two: other bits");
    // Stopped in the second stage, and in the middle of an epoch of it.
    let stopped = run("on", &["--gpus", "2", "--stop-after-steps", "80"]);
    let Output { status, stderr, .. } = spawn(at, &stopped, &[]).wait_with_output().unwrap();
    assert_eq!(status.code(), Some(130), "{}", String::from_utf8_lossy(&stderr));
    DBN_ON_CPU.succeed(at, &["up-down", "--resume", "on", "--gpus", "3"]);
    let one = metrics(&at.join("one"));
    for name in ["two", "on"] {
        let of_run = metrics(&at.join(name));
        assert_eq!(of_run.len(), one.len(), "{name}");
        for (field, (a, b)) in ["reconstruction_error", "top_error", "label_error"]
            .into_iter()
            .flat_map(|field| one.iter().zip(&of_run).map(move |lines| (field, lines)))
        {
            let [a, b] = [a, b].map(|line| number(line, field));
            assert!((a - b).abs() < 1e-2 * a, "{name} {field}: {b}, and {a} of one rank");
        }
    }
}

#[test]
fn a_signal_to_one_rank_ends_all_with_one_checkpoint_that_resumes() {
    let folder = base();
    let at = folder.path();
    succeed(two(at, &fine_tune("whole", "6")));
    for (rank, of, code) in [(0, "-INT", 130), (1, "-TERM", 143)] {
        let run = format!("ended-{rank}");
        let both = two(at, &fine_tune(&run, "6"));
        wait_for_lines(&at.join(&run), 2);
        signal(&both[rank], of);
        let all = ended(both);
        assert_eq!(all[rank].0, Some(code), "{all:?}");
        // The other was not told which signal it was.
        assert!(all.iter().all(|(code, ..)| *code == Some(130) || *code == Some(143)), "{all:?}");
        let want = format!("interrupted; resume with: dbn fine-tune --resume {run}");
        assert!(all[0].2.contains(&want) && all[1].2.is_empty(), "{all:?}");
        succeed(two(at, &["fine-tune", "--resume", &run]));
        assert!(weights(&at.join(&run)) == weights(&at.join("whole")), "rank {rank}: other bits");
    }
    // One rank goes on with what two began.
    let both = two(at, &[&fine_tune("fewer", "6")[..], &["--stop-after-steps", "7"]].concat());
    assert!(ended(both).iter().all(|(code, ..)| *code == Some(130)));
    DBN_ON_CPU.succeed(at, &["fine-tune", "--resume", "fewer"]);
    let [a, b] = ["fewer", "whole"].map(|run| results(&at.join(run))["training_error"].as_f64().unwrap());
    assert!((a - b).abs() < 2e-3, "{a} and {b}");
}

#[test]
fn a_rank_that_is_killed_or_stopped_ends_all_within_15_seconds_and_the_run_resumes() {
    let folder = base();
    let at = folder.path();
    succeed(two(at, &fine_tune("whole", "6")));
    for (rank, of) in [(1, "-KILL"), (0, "-KILL"), (1, "-STOP")] {
        let run = format!("gone{rank}{of}");
        let args = [&fine_tune(&run, "6")[..], &["--checkpoint-every", "0"]].concat();
        let mut both = two(at, &args);
        wait_for_lines(&at.join(&run), 1);
        signal(&both[rank], of);
        let since = Instant::now();
        both[1 - rank].wait().unwrap();
        assert!(since.elapsed() < ENDED, "{run}: {:?}", since.elapsed());
        // What is stopped cannot end by itself.
        both[rank].kill().unwrap();
        let all = ended(both);
        let (code, _, errors) = &all[1 - rank];
        assert_eq!(*code, Some(1), "{all:?}");
        assert!(errors.contains(&format!("rank {rank} of 2 on ")), "{errors}");
        let resume = format!("resume with: dbn fine-tune --resume {run}");
        assert!(rank == 0 || errors.contains(&resume), "{errors}");
        succeed(two(at, &["fine-tune", "--resume", &run]));
        assert!(weights(&at.join(&run)) == weights(&at.join("whole")), "{run}: other bits");
    }
    // The process that started the others is killed: they are gone, too.
    let args = [&fine_tune("left", "60")[..], &["--gpus", "3"]].concat();
    let mut first = spawn(at, &args, &[]);
    wait_for_lines(&at.join("left"), 1);
    let name = at.to_str().unwrap();
    first.kill().unwrap();
    first.wait().unwrap();
    let since = Instant::now();
    while !processes_in(name).is_empty() {
        assert!(since.elapsed() < ENDED, "{:?} are left", processes_in(name));
        sleep(Duration::from_millis(20));
    }
}

/// Processes that work in a folder.
fn processes_in(folder: &str) -> Vec<String> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let works_there = |process: &fs::DirEntry| {
        let at = fs::read_link(process.path().join("cwd"));
        let is_dead = fs::read_to_string(process.path().join("stat")).is_ok_and(|stat| stat.contains(") Z "));
        at.is_ok_and(|at| at == Path::new(folder)) && !is_dead
    };
    all.filter(works_there).map(|process| process.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn what_cannot_train_together_is_refused_by_name() {
    let folder = base();
    let at = folder.path();
    // A rank that is asked for something else.
    let (port, plain) = (free_port(), fine_tune("differs", "2"));
    let other = [&plain[..], &["--seed", "5"]].concat();
    let both = [(0, &plain), (1, &other)].map(|(rank, args)| spawn(at, args, &torchrun(rank, 2, port)));
    let all = ended(both);
    assert_eq!((all[0].0, all[1].0), (Some(1), Some(1)), "{all:?}");
    let want = "all ranks must be asked for the same; rank 0 has settings seed: ";
    assert!(all.iter().all(|(.., errors)| errors.contains(want)), "{all:?}");
    assert!(!at.join("differs").exists());

    // One that does not come.
    let limit = [&fine_tune("alone", "2")[..], &["--group-timeout", "0.3"]].concat();
    for (rank, want) in [
        (0, format!("dbn: rank 1 of 2 did not come to 127.0.0.1:{port} within 0.3 s\n")),
        (
            1,
            format!("rank 1 of 2: dbn: rank 0 of 2 did not answer rank 1 at 127.0.0.1:{port} within 0.3 s: "),
        ),
    ] {
        let Output { status, stderr, .. } =
            spawn(at, &limit, &torchrun(rank, 2, port)).wait_with_output().unwrap();
        let errors = String::from_utf8(stderr).unwrap();
        assert!(status.code() == Some(1) && errors.starts_with(&want), "{errors}");
    }

    // One that fails before: the others need not wait for the time limit.
    let missing = ["fine-tune", "nothing", "--classify", "--out", "none", "--gpus", "2"];
    let since = Instant::now();
    let Output { status, stderr, .. } = spawn(at, &missing, &[]).wait_with_output().unwrap();
    let errors = String::from_utf8(stderr).unwrap();
    assert!(status.code() == Some(1) && errors.contains("nothing"), "{errors}");
    assert!(since.elapsed() < ENDED);

    // What runs in one process.
    let refused = |mut command: Command, want: &str| {
        let Output { status, stderr, .. } = command.output().unwrap();
        let errors = String::from_utf8(stderr).unwrap();
        assert!(status.code() == Some(1) && errors.contains(want), "{errors}");
    };
    let mut sample = DBN_ON_CPU.command(at, &["sample", "base", "--steps", "1"]);
    sample.envs(torchrun(0, 2, port));
    refused(sample, "this command runs in one process, and a launcher has started 2");
    let mut wrong = DBN_ON_CPU.command(at, &fine_tune("wrong", "1"));
    wrong.env("RANK", "0").env("WORLD_SIZE", "2");
    refused(wrong, "MASTER_ADDR and MASTER_PORT must be set where RANK and WORLD_SIZE are");
}

#[test]
fn a_layout_by_two_processes_is_that_of_one_and_goes_on_with_either_number() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    let settings = ["--max-rows", "203", "--perplexity", "9", "--early-iterations", "50"];
    let layout = |out: &'static str, gpus: &[&'static str]| {
        TSNE.succeed(at, &[&settings[..], &["--iterations", "50", "--out", out], gpus].concat())
    };
    layout("one", &[]);
    let said = layout("two", &["--gpus", "2"]);
    assert_eq!(said.matches("iteration 100/100").count(), 1, "{said}");
    let kl = |run: &str| results(&at.join(run))["kl"].as_f64().unwrap_or(f64::NAN);
    assert!((kl("one") - kl("two")).abs() < 1e-3, "{} of one rank, {} of two", kl("one"), kl("two"));
    for (run, gpus) in [("one", &["--gpus", "2"][..]), ("two", &[])] {
        TSNE.succeed(at, &[&["--resume", run, "--iterations", "75"], gpus].concat());
        let lines = fs::read_to_string(at.join(run).join("metrics.jsonl")).unwrap();
        let last = lines.lines().last().unwrap_or_default();
        assert!(last.contains("\"iteration\":125"), "{run}: {last}");
    }
    assert!((kl("one") - kl("two")).abs() < 1e-3, "{} of one rank, {} of two", kl("one"), kl("two"));
}
