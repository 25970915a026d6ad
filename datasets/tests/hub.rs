//! The hub, played by a server on the loopback interface that each test starts for itself.
//!
//! The client reads `HF_ENDPOINT` and `HF_HOME` from the environment of the process, so each run is a process of its own:
//! this same executable, asked for the test [`child`].
mod common;
#[path = "common/server.rs"]
mod server;
use chandlery_datasets::patches::ImageSet;
use chandlery_datasets::{DataOptions, open};
use common::*;
use server::{COMMIT, Manner, Server};
use std::collections::HashSet;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

type BoxResult<T> = Result<T, Box<dyn std::error::Error>>;

/// An endpoint where nobody listens.
fn nobody() -> BoxResult<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    Ok(format!("http://{}", listener.local_addr()?))
}

/// Opens `spec` in a process of its own: a summary of the data, or the error's message with the cache as `HOME` and the
/// endpoint as `HUB`.
fn run(endpoint: &str, home: &Path, spec: &str, extra: &[(&str, &str)]) -> BoxResult<String> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["child", "--exact", "--ignored", "--nocapture"])
        .env("HF_ENDPOINT", endpoint)
        .env("HF_HOME", home)
        .env("CHANDLERY_TEST_SPEC", spec);
    for name in ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"] {
        command.env_remove(name);
    }
    // A proxy of the surroundings would stand between the client and the loopback interface.
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(name);
    }
    command.env("NO_PROXY", "127.0.0.1");
    command.envs(extra.iter().copied());
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.split_once("RESULT "));
    let Some((_, line)) = line else {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the child gave no result: {text} {complaint}").into());
    };
    Ok(line.replace(&home.display().to_string(), "HOME").replace(endpoint, "HUB"))
}

/// Not a test of its own: what [`run`] runs.
#[test]
#[ignore = "the other tests of this file run it, as a process of its own"]
fn child() {
    let spec = std::env::var("CHANDLERY_TEST_SPEC").unwrap_or_default();
    let option = |name: &str| std::env::var(format!("CHANDLERY_TEST_{name}")).ok();
    let options = DataOptions {
        config: option("CONFIG"),
        train_split: option("TRAIN"),
        features: option("FEATURES"),
        ..DataOptions::default()
    };
    if option("IMAGES").is_some() {
        let sizes = |set: ImageSet| set.images().iter().map(|i| i.shape().to_string()).collect::<Vec<_>>();
        match ImageSet::open(&spec, &options) {
            Err(e) => println!("RESULT {e}"),
            Ok(set) => println!("RESULT {:?}", sizes(set)),
        }
        return;
    }
    let result = match open(&spec, &options) {
        Err(e) => e.to_string(),
        Ok(data) => format!(
            "{} train {:?} test {:?} image {} classes {:?}",
            data.name,
            data.train.labels.as_deref().unwrap_or_default(),
            data.test.as_ref().and_then(|t| t.labels.as_deref()).unwrap_or_default(),
            data.image().map(|image| image.to_string()).unwrap_or_default(),
            data.class_names.unwrap_or_default(),
        ),
    };
    println!("RESULT {result}");
}

/// Parquet of images whose labels are given.
fn shard(labels: &[i64]) -> BoxResult<Vec<u8>> {
    let images = labels.iter().map(|&label| png(2, 2, &[label as u8; 4]));
    image_parquet(&images.collect::<BoxResult<Vec<_>>>()?, labels, 2)
}

fn mnist() -> BoxResult<Server> {
    Server::start(
        "ylecun/mnist",
        vec![("mnist/train/0000.parquet", shard(&[2, 1, 0])?), ("mnist/test/0000.parquet", shard(&[1])?)],
    )
}

const MNIST: &str = r#"mnist train [2, 1, 0] test [1] image 2x2x1 classes ["zero", "one", "two"]"#;

#[test]
fn a_second_run_reads_the_cache_with_the_server_gone() -> TestResult {
    let home = tempfile::tempdir()?;
    let server = mnist()?;
    assert_eq!(run(&server.endpoint, home.path(), "mnist", &[])?, MNIST);
    let path =
        |split| format!("/datasets/ylecun/mnist/resolve/refs%2Fconvert%2Fparquet/mnist/{split}/0000.parquet");
    let (test, train) = (path("test"), path("train"));
    // What the hub says of a file, then the file.
    let want = [&test, &test, &train, &train].map(|path| format!("GET {path}"));
    assert_eq!(server.requests(), want);
    assert_eq!(run(&server.endpoint, home.path(), "mnist", &[])?, MNIST);
    assert_eq!(server.requests(), [] as [String; 0], "the cache was not asked first");
    assert_eq!(run(&nobody()?, home.path(), "mnist", &[])?, MNIST);
    Ok(())
}

#[test]
fn no_network_and_no_cache() -> TestResult {
    let home = tempfile::tempdir()?;
    for spec in ["mnist", "hub:some/data"] {
        let text = run(&nobody()?, home.path(), spec, &[])?;
        let (id, file) = match spec {
            "mnist" => ("ylecun/mnist", "mnist/test/0000.parquet "),
            _ => ("some/data", ""),
        };
        assert_eq!(
            text,
            format!(
                "hub {id}: {file}not in the cache HOME/hub and HUB cannot be reached; check the network and HF_ENDPOINT, or \
                 use mnist-sample, which needs neither"
            )
        );
    }
    let text = run(&nobody()?, home.path(), "fashion-mnist", &[("HF_HUB_OFFLINE", "1")])?;
    assert_eq!(
        text,
        "hub zalando-datasets/fashion_mnist: not in the cache HOME/hub; unset HF_HUB_OFFLINE to download it"
    );
    Ok(())
}

#[test]
fn offline_asks_nobody() -> TestResult {
    let home = tempfile::tempdir()?;
    let server = mnist()?;
    let offline = [("HF_HUB_OFFLINE", "1")];
    for spec in ["mnist", "hub:ylecun/mnist"] {
        let text = run(&server.endpoint, home.path(), spec, &offline)?;
        assert_eq!(text, "hub ylecun/mnist: not in the cache HOME/hub; unset HF_HUB_OFFLINE to download it");
    }
    run(&server.endpoint, home.path(), "mnist", &[])?;
    server.requests();
    assert_eq!(run(&server.endpoint, home.path(), "mnist", &offline)?, MNIST);
    let other = run(&server.endpoint, home.path(), "hub:ylecun/mnist", &offline)?;
    assert_eq!(other, format!("hub:ylecun/{MNIST}"));
    assert_eq!(server.requests(), [] as [String; 0]);
    Ok(())
}

#[test]
fn a_name_that_does_not_exist() -> TestResult {
    let home = tempfile::tempdir()?;
    let server = mnist()?;
    let fix = "check the spelling of OWNER/NAME, and that the hub's viewer shows the data set";
    assert_eq!(
        run(&server.endpoint, home.path(), "hub:ylecun/mnits", &[])?,
        format!("hub ylecun/mnits: not found at HUB (404); {fix}")
    );
    assert_eq!(
        run(&server.endpoint, home.path(), "fashion-mnist", &[])?,
        format!(
            "hub zalando-datasets/fashion_mnist: fashion_mnist/test/0000.parquet not found at HUB (404); {fix}"
        )
    );
    server.behave(Manner { status: Some("401 Unauthorized"), ..Manner::default() });
    assert_eq!(
        run(&server.endpoint, home.path(), "hub:ylecun/secret", &[])?,
        "hub ylecun/secret: not found at HUB, or not for everyone; check the spelling of OWNER/NAME; for a private or gated \
         data set set HF_TOKEN"
    );
    for bad in ["hub:mnist", "hub:a/b/c", "hub:../x", "hub:a/", "hub:a/b?c"] {
        let id = bad.trim_start_matches("hub:");
        assert_eq!(
            run(&server.endpoint, home.path(), bad, &[])?,
            format!("hub {id}: is not of the form OWNER/NAME; write for example hub:ylecun/mnist")
        );
    }
    Ok(())
}

#[test]
fn a_download_that_breaks_off_and_the_run_after_it() -> TestResult {
    let home = tempfile::tempdir()?;
    let server = mnist()?;
    server.behave(Manner { cut: HashSet::from(["train/0000.parquet".to_owned()]), ..Manner::default() });
    assert_eq!(
        run(&server.endpoint, home.path(), "mnist", &[])?,
        "hub ylecun/mnist: the download of mnist/train/0000.parquet broke off; run again"
    );
    // What was cut off is not taken for the file.
    server.behave(Manner::default());
    assert_eq!(run(&server.endpoint, home.path(), "mnist", &[])?, MNIST);
    Ok(())
}

#[test]
fn a_truncated_file_in_the_cache_names_what_to_delete() -> TestResult {
    let home = tempfile::tempdir()?;
    let whole = shard(&[2, 1, 0])?;
    let server = Server::start(
        "ylecun/mnist",
        vec![
            ("mnist/train/0000.parquet", whole[..whole.len() / 2].to_vec()),
            ("mnist/test/0000.parquet", shard(&[1])?),
        ],
    )?;
    let text = run(&server.endpoint, home.path(), "mnist", &[])?;
    let file = format!(
        "HOME/hub/datasets--ylecun--mnist/snapshots/{COMMIT}/mnist/train/0000.parquet: truncated or not a parquet file: "
    );
    assert!(text.starts_with(&file), "{text}");
    let (_, fix) = text.rsplit_once("; ").ok_or("no remedy")?;
    let blob = fix
        .strip_prefix("delete ")
        .and_then(|fix| fix.strip_suffix(" and run again to fetch it afresh"))
        .ok_or_else(|| format!("no remedy in {text}"))?;
    assert!(blob.starts_with("HOME/hub/datasets--ylecun--mnist/blobs/"), "{blob}");
    // The remedy works.
    std::fs::remove_file(blob.replace("HOME", &home.path().display().to_string()))?;
    assert_eq!(run(&mnist()?.endpoint, home.path(), "mnist", &[])?, MNIST);
    Ok(())
}

#[test]
fn a_hub_out_of_order() -> TestResult {
    let home = tempfile::tempdir()?;
    let server = mnist()?;
    server.behave(Manner { status: Some("503 Service Unavailable"), ..Manner::default() });
    assert_eq!(
        run(&server.endpoint, home.path(), "mnist", &[])?,
        "hub ylecun/mnist: mnist/test/0000.parquet not in the cache HOME/hub and HUB cannot be reached; check the network and \
         HF_ENDPOINT, or use mnist-sample, which needs neither"
    );
    Ok(())
}

#[test]
fn configurations_splits_and_shards_are_found_by_listing() -> TestResult {
    let home = tempfile::tempdir()?;
    let server = Server::start(
        "some/data",
        vec![
            ("big/train/0001.parquet", shard(&[2, 2])?),
            ("big/train/0000.parquet", shard(&[0, 1])?),
            ("big/validation/0000.parquet", shard(&[1])?),
            ("small/train/0000.parquet", shard(&[1])?),
        ],
    )?;
    let spec = "hub:some/data";
    let run = |endpoint: &str, extra: &[(&str, &str)]| run(endpoint, home.path(), spec, extra);
    assert_eq!(
        run(&server.endpoint, &[])?,
        "hub some/data: has several configurations: big, small; choose one by the option for the config"
    );
    let missing = [("CHANDLERY_TEST_CONFIG", "huge")];
    assert_eq!(run(&server.endpoint, &missing)?, "hub some/data: no config 'huge'; there are: big, small");
    let big = [("CHANDLERY_TEST_CONFIG", "big")];
    let want = r#"hub:some/data train [0, 1, 2, 2] test [1] image 2x2x1 classes ["zero", "one", "two"]"#;
    assert_eq!(run(&server.endpoint, &big)?, want);
    // Without the network, from the cache: with one configuration there, none needs to be named.
    assert_eq!(run(&nobody()?, &big)?, want);
    assert_eq!(run(&nobody()?, &[])?, want);
    let split = [big[0], ("CHANDLERY_TEST_TRAIN", "held")];
    assert_eq!(
        run(&server.endpoint, &split)?,
        "hub some/data: no split 'held'; there are: train, validation"
    );
    let columns = [big[0], ("CHANDLERY_TEST_FEATURES", "pixels")];
    let text = run(&server.endpoint, &columns)?;
    assert!(text.ends_with("/big/train/0000.parquet: no column 'pixels'; there are: image, label"), "{text}");
    Ok(())
}

#[test]
fn a_cache_that_misses_a_shard_is_not_taken_for_the_whole() -> TestResult {
    let home = tempfile::tempdir()?;
    let server = Server::start(
        "some/data",
        vec![("default/train/0000.parquet", shard(&[0])?), ("default/train/0001.parquet", shard(&[1])?)],
    )?;
    // The later shard arrives, the earlier one does not.
    server.behave(Manner { cut: HashSet::from(["train/0000.parquet".to_owned()]), ..Manner::default() });
    let spec = "hub:some/data";
    assert_eq!(
        run(&server.endpoint, home.path(), spec, &[])?,
        "hub some/data: the download of default/train/0000.parquet broke off; run again"
    );
    assert_eq!(
        run(&nobody()?, home.path(), spec, &[])?,
        "hub some/data: the cache holds default/train/0001.parquet but not default/train/0000.parquet; run again with the \
         network to complete the download"
    );
    Ok(())
}

#[test]
fn a_data_set_without_parquet_files() -> TestResult {
    let home = tempfile::tempdir()?;
    let server = Server::start("some/texts", vec![])?;
    assert_eq!(
        run(&server.endpoint, home.path(), "hub:some/texts", &[])?,
        "hub some/texts: has no parquet files in refs/convert/parquet; choose a data set that the hub's viewer shows"
    );
    Ok(())
}

#[test]
fn images_of_a_hub_data_set_may_have_different_sizes_where_they_are_cut() -> TestResult {
    let images = [png(2, 3, &[1; 6])?, png(5, 4, &[2; 20])?];
    let server = Server::start(
        "owner/name",
        vec![
            ("default/train/0000.parquet", image_parquet(&images, &[0, 1], 2)?),
            ("default/test/0000.parquet", shard(&[0])?),
        ],
    )?;
    let home = tempfile::tempdir()?;
    let of = |extra: &[(&str, &str)]| run(&server.endpoint, home.path(), "hub:owner/name", extra);
    assert_eq!(of(&[("CHANDLERY_TEST_IMAGES", "1")])?, r#"["2x3x1", "5x4x1"]"#);
    // Test rows come from other images of the training split, so that those of the test split are not fetched.
    assert!(server.requests().iter().all(|request| !request.contains("default/test")));
    assert!(of(&[])?.contains("make all images of a data set the same"));
    Ok(())
}
