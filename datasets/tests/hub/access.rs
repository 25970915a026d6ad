//! Who may read what, and what there is: tokens, private and gated repositories, names, revisions
//! and files that do not exist.
use super::*;

fn private() -> BoxResult<Server> {
    mnist_with(Manner { token: Some("secret"), ..Manner::default() })
}

#[test]
fn a_private_data_set_is_read_by_a_token_of_the_environment_or_of_a_file() -> TestResult {
    let server = private()?;
    for spec in ["mnist", "hub:ylecun/mnist"] {
        let want = format!("{}{MNIST}", spec.trim_end_matches("mnist"));
        for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
            let home = tempfile::tempdir()?;
            assert_eq!(run(&server.endpoint, home.path(), spec, &[(name, "secret")])?, want, "{name}");
        }
        let home = tempfile::tempdir()?;
        std::fs::write(home.path().join("token"), "secret\n")?;
        assert_eq!(run(&server.endpoint, home.path(), spec, &[])?, want);
        let (home, file) = (tempfile::tempdir()?, tempfile::NamedTempFile::new()?);
        std::fs::write(&file, " secret ")?;
        let path = file.path().display().to_string();
        assert_eq!(run(&server.endpoint, home.path(), spec, &[("HF_TOKEN_PATH", path.as_str())])?, want);
        // The variable wins over the file.
        let both = [("HF_TOKEN_PATH", path.as_str()), ("HF_TOKEN", "other")];
        let home = tempfile::tempdir()?;
        assert!(run(&server.endpoint, home.path(), spec, &both)?.contains("not for this token (401)"));
    }
    Ok(())
}

#[test]
fn what_is_not_for_everyone_names_the_token() -> TestResult {
    let home = tempfile::tempdir()?;
    let server = private()?;
    let file = "mnist/test/0000.parquet";
    assert_eq!(
        run(&server.endpoint, home.path(), "mnist", &[])?,
        format!(
            "hub ylecun/mnist: {file} not found at HUB, or not for everyone; check the spelling of OWNER/NAME; for a private or gated \
             data set set HF_TOKEN"
        )
    );
    assert_eq!(
        run(&server.endpoint, home.path(), "mnist", &[("HF_TOKEN", "expired")])?,
        format!(
            "hub ylecun/mnist: {file} not found at HUB, or not for this token (401); check the spelling of OWNER/NAME, and that the \
             token of HF_TOKEN is valid and may read HUB/datasets/ylecun/mnist"
        )
    );
    let text = run(&server.endpoint, home.path(), "mnist", &[("HF_TOKEN", "line\nbreak")])?;
    assert_eq!(
        text,
        "hub ylecun/mnist: the token holds characters that cannot be sent; set HF_TOKEN to a token"
    );
    server.behave(Manner { is_gated: true, ..Manner::default() });
    assert_eq!(
        run(&server.endpoint, home.path(), "hub:ylecun/mnist", &[("HF_TOKEN", "secret")])?,
        "hub ylecun/mnist: not for everyone: the data set is gated; ask for access at HUB/datasets/ylecun/mnist, and set HF_TOKEN to \
         a token that may read it"
    );
    Ok(())
}

#[test]
fn a_name_that_does_not_exist() -> TestResult {
    let home = tempfile::tempdir()?;
    let server = mnist()?;
    // Without a token the hub does not say whether there is such a name.
    assert_eq!(
        run(&server.endpoint, home.path(), "hub:ylecun/mnits", &[])?,
        "hub ylecun/mnits: not found at HUB, or not for everyone; check the spelling of OWNER/NAME; for a private or gated data set \
         set HF_TOKEN"
    );
    let fix = "check the spelling of OWNER/NAME, and that the hub's viewer shows the data set";
    assert_eq!(
        run(&server.endpoint, home.path(), "hub:ylecun/mnits", &[("HF_TOKEN", "secret")])?,
        format!("hub ylecun/mnits: not found at HUB (404); {fix}")
    );
    server.behave(Manner { status: Some("404 Not Found"), ..Manner::default() });
    assert_eq!(
        run(&server.endpoint, home.path(), "fashion-mnist", &[])?,
        format!(
            "hub zalando-datasets/fashion_mnist: fashion_mnist/test/0000.parquet not found at HUB (404); {fix}"
        )
    );
    Ok(())
}

#[test]
fn a_revision_or_a_file_that_does_not_exist() -> TestResult {
    let home = tempfile::tempdir()?;
    let server = mnist()?;
    assert_eq!(
        run(&server.endpoint, home.path(), "hub:ylecun/mnist@v9", &[])?,
        "hub ylecun/mnist: has no revision v9 at HUB; choose a branch, a tag or a whole commit that HUB/datasets/ylecun/mnist shows"
    );
    let other = Server::start("datasets/some/texts", vec![("mnist/test/0000.parquet", shard(&[1])?)])?;
    other.behave(Manner {
        status: Some("404 Not Found\r\nX-Error-Code: RevisionNotFound"),
        ..Manner::default()
    });
    assert_eq!(
        run(&other.endpoint, home.path(), "hub:some/texts", &[])?,
        "hub some/texts: has no parquet files in refs/convert/parquet; choose a data set that the hub's viewer shows"
    );
    // Of the two files of MNIST one is gone.
    let half = Server::start("datasets/ylecun/mnist", vec![("mnist/test/0000.parquet", shard(&[1])?)])?;
    assert_eq!(
        run(&half.endpoint, home.path(), "mnist", &[])?,
        "hub ylecun/mnist: mnist/train/0000.parquet not found at HUB in revision refs/convert/parquet (404); check the spelling of \
         OWNER/NAME, and that the hub's viewer shows the data set"
    );
    Ok(())
}
