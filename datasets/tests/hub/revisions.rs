//! Branches, tags and commits, and that the files of a data set are of one of them.
use super::*;

const NEXT: &str = "fedcba9876543210fedcba9876543210fedcba98";
const NEXT_MNIST: &str = r#"mnist train [0, 0] test [2] image 2x2x1 classes ["zero", "one", "two"]"#;

fn next_files() -> BoxResult<Vec<(&'static str, Vec<u8>)>> {
    mnist_files(&[0, 0], &[2])
}

#[test]
fn a_revision_is_a_branch_a_tag_or_a_commit() -> TestResult {
    let server = mnist()?;
    server.commit("refs/pr/1", NEXT, next_files()?);
    server.commit("v2", NEXT, next_files()?);
    for revision in ["refs/pr/1", "v2", NEXT, &NEXT.to_uppercase()] {
        for spec in ["hub:ylecun/mnist", "mnist"] {
            let home = tempfile::tempdir()?;
            let option = [("CHANDLERY_TEST_REVISION", revision)];
            let want = format!("{}{NEXT_MNIST}", spec.trim_end_matches("mnist"));
            assert_eq!(run(&server.endpoint, home.path(), spec, &option)?, want, "{revision}");
        }
        let home = tempfile::tempdir()?;
        let spec = format!("hub:ylecun/mnist@{revision}");
        let want = format!("hub:ylecun/{}", NEXT_MNIST.replacen("mnist", &format!("mnist@{revision}"), 1));
        assert_eq!(run(&server.endpoint, home.path(), &spec, &[])?, want);
        // Each has a place of its own in the cache, which is enough from then on.
        assert_eq!(run(&server.endpoint, home.path(), &spec, &[("HF_HUB_OFFLINE", "1")])?, want);
        assert_eq!(run(&nobody()?, home.path(), &spec, &[])?, want);
        assert_eq!(run(&server.endpoint, home.path(), "mnist", &[])?, MNIST);
    }
    Ok(())
}

#[test]
fn files_of_a_data_set_uploaded_by_hand_are_read_at_its_own_branch() -> TestResult {
    let (home, server) = (tempfile::tempdir()?, mnist()?);
    let files = vec![
        ("data/train-00000-of-00002.parquet", shard(&[2])?),
        ("data/train-00001-of-00002.parquet", shard(&[0])?),
        ("data/test-00000-of-00001.parquet", shard(&[1])?),
    ];
    server.commit("main", NEXT, files);
    let text = run(&server.endpoint, home.path(), "hub:ylecun/mnist@main", &[])?;
    assert!(text.starts_with("hub:ylecun/mnist@main train [2, 0] test [1] "), "{text}");
    Ok(())
}

#[test]
fn a_branch_that_moves_during_a_download_does_not_mix_commits() -> TestResult {
    for spec in ["mnist", "hub:ylecun/mnist"] {
        let (home, server) = (
            tempfile::tempdir()?,
            mnist_with(Manner { hold: Some("test/0000.parquet"), ..Manner::default() })?,
        );
        let child = process::start(&server.endpoint, home.path(), &[("CHANDLERY_TEST_SPEC", spec)])?;
        server.wait_for(1, &format!("GET /datasets/ylecun/mnist/resolve/{COMMIT}/mnist/test/0000.parquet"));
        server.commit("refs/convert/parquet", NEXT, next_files()?);
        server.release();
        let want = format!("{}{MNIST}", spec.trim_end_matches("mnist"));
        assert_eq!(process::result(child, &server.endpoint, home.path())?, want);
    }
    Ok(())
}

#[test]
fn a_branch_that_moved_since_the_last_run_is_followed_where_the_hub_lists_files() -> TestResult {
    let (home, server) = (tempfile::tempdir()?, mnist()?);
    let spec = "hub:ylecun/mnist";
    assert_eq!(run(&server.endpoint, home.path(), spec, &[])?, format!("hub:ylecun/{MNIST}"));
    server.commit("refs/convert/parquet", NEXT, next_files()?);
    // The new commit breaks off: the cache goes on with the old one.
    server.behave(Manner { cut: Some(("train/0000.parquet", 10)), ..Manner::default() });
    assert!(run(&server.endpoint, home.path(), spec, &[])?.contains("broke off"));
    let offline = [("HF_HUB_OFFLINE", "1")];
    assert_eq!(run(&server.endpoint, home.path(), spec, &offline)?, format!("hub:ylecun/{MNIST}"));
    server.behave(Manner::default());
    assert_eq!(run(&server.endpoint, home.path(), spec, &[])?, format!("hub:ylecun/{NEXT_MNIST}"));
    assert_eq!(run(&server.endpoint, home.path(), "mnist", &offline)?, NEXT_MNIST);
    Ok(())
}

#[test]
fn revisions_that_are_refused() -> TestResult {
    let (home, server) = (tempfile::tempdir()?, mnist()?);
    let of = |spec: &str, revision: &str| {
        run(&server.endpoint, home.path(), spec, &[("CHANDLERY_TEST_REVISION", revision)])
    };
    assert_eq!(
        of("hub:ylecun/mnist@main", "v1")?,
        "hub ylecun/mnist@main: the revision is given twice, as main and as v1; give one of them"
    );
    for bad in ["../main", "a//b", "/main", "a\\b", ".."] {
        assert_eq!(
            of("hub:ylecun/mnist", bad)?,
            format!(
                "hub ylecun/mnist: '{bad}' is no name of a revision; give a branch, a tag or a commit, such as main"
            )
        );
    }
    let text = of("mnist-sample", "main")?;
    assert_eq!(
        text,
        "data 'mnist-sample': only data of the hub have revisions, got main; leave out `DataOptions::revision`"
    );
    assert_eq!(server.requests(), [] as [String; 0]);
    Ok(())
}
