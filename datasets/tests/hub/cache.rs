//! The cache as other clients of the hub lay it out, half-finished, and in use by two processes.
use super::server::{Bytes, sha256};
use super::*;
use std::path::PathBuf;

const FOLDER: &str = "datasets--ylecun--mnist";

fn elsewhere() -> Manner {
    Manner { bytes: Bytes::Elsewhere, ..Manner::default() }
}

/// Every file and link below a folder, with what it holds or leads to.
fn tree(folder: &Path) -> BoxResult<Vec<(String, String)>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next)? {
            let path: PathBuf = entry?.path();
            let name = path.strip_prefix(folder)?.display().to_string();
            if path.is_symlink() {
                found.push((name, format!("-> {}", std::fs::read_link(&path)?.display())));
            } else if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = std::fs::read(&path)?;
                found.push((name, if bytes.len() > 40 { sha256(&bytes) } else { String::from_utf8(bytes)? }));
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(unix)]
#[test]
fn files_lie_where_other_clients_look_for_them() -> TestResult {
    let (home, server) = (tempfile::tempdir()?, mnist_with(elsewhere())?);
    assert_eq!(run(&server.endpoint, home.path(), "mnist", &[])?, MNIST);
    let (train, test) = (sha256(&shard(&[2, 1, 0])?), sha256(&shard(&[1])?));
    let snapshot = format!("{FOLDER}/snapshots/{COMMIT}/mnist");
    let mut want = vec![
        (format!(".locks/{FOLDER}/{train}.lock"), String::new()),
        (format!(".locks/{FOLDER}/{test}.lock"), String::new()),
        (format!("{FOLDER}/blobs/{train}"), train.clone()),
        (format!("{FOLDER}/blobs/{test}"), test.clone()),
        (format!("{FOLDER}/refs/refs/convert/parquet"), COMMIT.to_owned()),
        (format!("{snapshot}/test/0000.parquet"), format!("-> ../../../../blobs/{test}")),
        (format!("{snapshot}/train/0000.parquet"), format!("-> ../../../../blobs/{train}")),
    ];
    want.sort();
    assert_eq!(tree(&home.path().join("hub"))?, want);
    Ok(())
}

#[test]
fn the_cache_may_lie_elsewhere() -> TestResult {
    let (home, other, server) = (tempfile::tempdir()?, tempfile::tempdir()?, mnist()?);
    let folder = other.path().display().to_string();
    for name in ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"] {
        assert_eq!(run(&server.endpoint, home.path(), "mnist", &[(name, &folder)])?, MNIST);
        assert!(other.path().join(FOLDER).is_dir() && !home.path().join("hub").exists());
    }
    Ok(())
}

#[test]
fn two_processes_that_want_one_file_fetch_it_once() -> TestResult {
    let (home, server) =
        (tempfile::tempdir()?, mnist_with(Manner { hold: Some("signed=1"), ..elsewhere() })?);
    let extra = [("CHANDLERY_TEST_SPEC", "mnist")];
    let start = || process::start(&server.endpoint, home.path(), &extra);
    let children = [start()?, start()?, start()?];
    // All know what the first file is, and one has half of it.
    server.wait_for(3, "resolve/refs%2Fconvert%2Fparquet/mnist/test/0000.parquet");
    server.wait_for(1, "signed=1");
    server.release();
    for child in children {
        assert_eq!(process::result(child, &server.endpoint, home.path())?, MNIST);
    }
    let fetched = server.requests().into_iter().filter(|line| line.ends_with("signed=1")).count();
    assert_eq!(fetched, 2, "a file was fetched twice");
    Ok(())
}

#[test]
fn a_process_that_was_killed_leaves_what_the_next_one_goes_on_with() -> TestResult {
    let (home, server) =
        (tempfile::tempdir()?, mnist_with(Manner { hold: Some("signed=1"), ..elsewhere() })?);
    let mut child = process::start(&server.endpoint, home.path(), &[("CHANDLERY_TEST_SPEC", "mnist")])?;
    server.wait_for(1, "signed=1");
    child.kill()?;
    child.wait()?;
    server.behave(elsewhere());
    assert_eq!(run(&server.endpoint, home.path(), "mnist", &[])?, MNIST);
    let blobs = std::fs::read_dir(home.path().join("hub").join(FOLDER).join("blobs"))?;
    assert_eq!(blobs.count(), 2);
    Ok(())
}

/// A cache as another client leaves it that fetched only the test rows.
fn half_a_cache(home: &Path, commit: &str, test: &[u8]) -> TestResult {
    let folder = home.join("hub").join(FOLDER);
    let snapshot = folder.join("snapshots").join(commit).join("mnist/test");
    for path in [&folder.join("blobs"), &folder.join("refs/refs/convert"), &snapshot] {
        std::fs::create_dir_all(path)?;
    }
    std::fs::write(folder.join("blobs").join(sha256(test)), test)?;
    std::fs::write(folder.join("refs/refs/convert/parquet"), commit)?;
    std::fs::copy(folder.join("blobs").join(sha256(test)), snapshot.join("0000.parquet"))?;
    Ok(())
}

#[test]
fn a_half_finished_cache_is_completed() -> TestResult {
    let (home, server) = (tempfile::tempdir()?, mnist_with(elsewhere())?);
    half_a_cache(home.path(), COMMIT, &shard(&[1])?)?;
    let text = run(&server.endpoint, home.path(), "mnist", &[("HF_HUB_OFFLINE", "1")])?;
    let want = "hub ylecun/mnist: mnist/train/0000.parquet not in the cache HOME/hub; unset HF_HUB_OFFLINE to download it";
    assert_eq!(text, want);
    assert_eq!(run(&server.endpoint, home.path(), "mnist", &[])?, MNIST);
    let gets = server.requests().into_iter().filter(|line| line.ends_with("signed=1")).count();
    assert_eq!(gets, 1, "what was there was fetched again");
    Ok(())
}

#[test]
fn a_half_finished_cache_of_an_older_commit_does_not_mix_with_a_newer_one() -> TestResult {
    let (home, server) = (tempfile::tempdir()?, mnist_with(elsewhere())?);
    half_a_cache(home.path(), "00000000000000000000000000000000000000aa", &shard(&[0, 0, 0])?)?;
    assert_eq!(run(&server.endpoint, home.path(), "mnist", &[])?, MNIST);
    // The newer commit is the one of the branch from then on.
    assert_eq!(run(&nobody()?, home.path(), "mnist", &[])?, MNIST);
    Ok(())
}

#[test]
fn a_blob_of_another_length_and_a_link_to_nothing_are_mended() -> TestResult {
    let (home, server) = (tempfile::tempdir()?, mnist_with(elsewhere())?);
    assert_eq!(run(&server.endpoint, home.path(), "mnist", &[])?, MNIST);
    let blobs = home.path().join("hub").join(FOLDER).join("blobs");
    let snapshot = home.path().join("hub").join(FOLDER).join("snapshots").join(COMMIT);
    std::fs::remove_file(blobs.join(sha256(&shard(&[1])?)))?;
    assert_eq!(run(&server.endpoint, home.path(), "mnist", &[])?, MNIST);
    std::fs::remove_dir_all(snapshot)?;
    std::fs::write(blobs.join(sha256(&shard(&[1])?)), b"PAR1")?;
    assert_eq!(run(&server.endpoint, home.path(), "mnist", &[])?, MNIST);
    Ok(())
}

#[test]
fn a_listed_name_that_leads_elsewhere_is_refused() -> TestResult {
    for name in ["default/train/../../../../../../x.parquet", "/etc/train.parquet", "..\\train.parquet"] {
        let (home, server) =
            (tempfile::tempdir()?, Server::start("datasets/some/data", vec![(name, shard(&[1])?)])?);
        let text = run(&server.endpoint, home.path(), "hub:some/data", &[])?;
        assert!(text.contains("HUB lists a file whose name leads elsewhere; "), "{text}");
        assert!(!home.path().join("hub").exists(), "{name}");
    }
    Ok(())
}

#[test]
fn a_cache_that_cannot_be_written_names_the_variable() -> TestResult {
    let (home, server) = (tempfile::tempdir()?, mnist()?);
    // A file where the folder of the cache must be.
    std::fs::write(home.path().join("hub"), b"")?;
    let text = run(&server.endpoint, home.path(), "mnist", &[])?;
    assert!(text.starts_with("hub ylecun/mnist: cannot write to the cache: HOME/hub/"), "{text}");
    assert!(text.ends_with("; check its permissions and free space, or set HF_HUB_CACHE"), "{text}");
    Ok(())
}
