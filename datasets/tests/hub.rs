//! The hub, played by a server on the loopback interface that each test starts for itself.
//!
//! The client reads `HF_ENDPOINT` and `HF_HOME` from the environment of the process, so each run is
//! a process of its own: this same executable, asked for the test [`child`].
#[path = "hub/access.rs"]
mod access;
#[path = "hub/cache.rs"]
mod cache;
mod common;
#[path = "common/process.rs"]
mod process;
#[path = "hub/revisions.rs"]
mod revisions;
#[path = "common/server.rs"]
mod server;
#[path = "hub/transfers.rs"]
mod transfers;
use chandlery_datasets::patches::ImageSet;
use chandlery_datasets::{DataOptions, open};
use common::*;
use process::BoxResult;
use server::{COMMIT, Manner, Server};
use std::net::TcpListener;
use std::path::Path;

/// An endpoint where nobody listens.
fn nobody() -> BoxResult<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    Ok(format!("http://{}", listener.local_addr()?))
}

/// Opens `spec` in a process of its own: a summary of the data, or the error's message with the
/// cache as `HOME` and the endpoint as `HUB`.
fn run(endpoint: &str, home: &Path, spec: &str, extra: &[(&str, &str)]) -> BoxResult<String> {
    process::run(endpoint, home, &[&[("CHANDLERY_TEST_SPEC", spec)], extra].concat())
}

/// Not a test of its own: what [`run`] runs.
#[test]
#[ignore = "the other tests of this file run it, as a process of its own"]
fn child() {
    let spec = std::env::var("CHANDLERY_TEST_SPEC").unwrap_or_default();
    let option = |name: &str| std::env::var(format!("CHANDLERY_TEST_{name}")).ok();
    let options = DataOptions {
        config: option("CONFIG"),
        revision: option("REVISION"),
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

fn mnist_files(train: &[i64], test: &[i64]) -> BoxResult<Vec<(&'static str, Vec<u8>)>> {
    Ok(vec![("mnist/train/0000.parquet", shard(train)?), ("mnist/test/0000.parquet", shard(test)?)])
}

fn mnist() -> BoxResult<Server> {
    Ok(Server::start("datasets/ylecun/mnist", mnist_files(&[2, 1, 0], &[1])?)?)
}

/// MNIST whose server behaves so from the beginning.
fn mnist_with(manner: Manner) -> BoxResult<Server> {
    let server = mnist()?;
    server.behave(manner);
    Ok(server)
}

const MNIST: &str = r#"mnist train [2, 1, 0] test [1] image 2x2x1 classes ["zero", "one", "two"]"#;

#[test]
fn a_second_run_reads_the_cache_with_the_server_gone() -> TestResult {
    let home = tempfile::tempdir()?;
    let server = mnist()?;
    assert_eq!(run(&server.endpoint, home.path(), "mnist", &[])?, MNIST);
    let path =
        |revision, split| format!("/datasets/ylecun/mnist/resolve/{revision}/mnist/{split}/0000.parquet");
    // What the hub says of a file, then the file; the commit is settled with the first.
    let want = [
        format!("HEAD {}", path("refs%2Fconvert%2Fparquet", "test")),
        format!("GET {}", path(COMMIT, "test")),
        format!("HEAD {}", path(COMMIT, "train")),
        format!("GET {}", path(COMMIT, "train")),
    ];
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
        "hub zalando-datasets/fashion_mnist: fashion_mnist/test/0000.parquet not in the cache HOME/hub; unset HF_HUB_OFFLINE to \
         download it"
    );
    Ok(())
}

#[test]
fn offline_asks_nobody() -> TestResult {
    let home = tempfile::tempdir()?;
    let server = mnist()?;
    let offline = [("HF_HUB_OFFLINE", "1")];
    for (spec, file) in [("mnist", "mnist/test/0000.parquet "), ("hub:ylecun/mnist", "")] {
        let text = run(&server.endpoint, home.path(), spec, &offline)?;
        let want =
            format!("hub ylecun/mnist: {file}not in the cache HOME/hub; unset HF_HUB_OFFLINE to download it");
        assert_eq!(text, want);
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
fn a_name_that_is_no_id() -> TestResult {
    let home = tempfile::tempdir()?;
    let server = mnist()?;
    for bad in ["hub:mnist", "hub:a/b/c", "hub:../x", "hub:a/", "hub:a/b?c", "hub:@main"] {
        let id = bad.trim_start_matches("hub:");
        assert_eq!(
            run(&server.endpoint, home.path(), bad, &[])?,
            format!("hub {id}: is not of the form OWNER/NAME; write for example hub:ylecun/mnist")
        );
    }
    assert_eq!(server.requests(), [] as [String; 0]);
    Ok(())
}

#[test]
fn a_truncated_file_in_the_cache_names_what_to_delete() -> TestResult {
    let home = tempfile::tempdir()?;
    let whole = shard(&[2, 1, 0])?;
    let server = Server::start(
        "datasets/ylecun/mnist",
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
fn configurations_splits_and_shards_are_found_by_listing() -> TestResult {
    let home = tempfile::tempdir()?;
    let server = Server::start(
        "datasets/some/data",
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
        "hub some/data: has several configurations: big, small; choose one by `DataOptions::config`"
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
        "datasets/some/data",
        vec![("default/train/0000.parquet", shard(&[0])?), ("default/train/0001.parquet", shard(&[1])?)],
    )?;
    // The later shard arrives, the earlier one does not.
    server.behave(Manner { cut: Some(("train/0000.parquet", 10)), ..Manner::default() });
    let spec = "hub:some/data";
    let text = run(&server.endpoint, home.path(), spec, &[])?;
    assert!(
        text.starts_with("hub some/data: the download of default/train/0000.parquet broke off at 10 of "),
        "{text}"
    );
    // The cache does not say that the branch stands there.
    let offline = [("HF_HUB_OFFLINE", "1")];
    assert_eq!(
        run(&server.endpoint, home.path(), spec, &offline)?,
        "hub some/data: not in the cache HOME/hub; unset HF_HUB_OFFLINE to download it"
    );
    // One that does, as other clients leave it.
    let folder = home.path().join("hub/datasets--some--data/refs/refs/convert");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("parquet"), COMMIT)?;
    let want = "hub some/data: the cache holds default/train/0001.parquet but not default/train/0000.parquet; run again with the \
                network to complete the download";
    assert_eq!(run(&server.endpoint, home.path(), spec, &offline)?, want);
    assert_eq!(run(&nobody()?, home.path(), spec, &[])?, want);
    Ok(())
}

#[test]
fn a_data_set_without_parquet_files() -> TestResult {
    let home = tempfile::tempdir()?;
    let server = Server::start("datasets/some/texts", vec![])?;
    assert_eq!(
        run(&server.endpoint, home.path(), "hub:some/texts", &[])?,
        "hub some/texts: has no parquet files in refs/convert/parquet; choose a data set that the hub's viewer shows"
    );
    server.commit("main", COMMIT, vec![("rows.txt", vec![1])]);
    assert_eq!(
        run(&server.endpoint, home.path(), "hub:some/texts@main", &[])?,
        "hub some/texts: has no parquet files in main; choose a revision that has some, or leave it out"
    );
    Ok(())
}

#[test]
fn images_of_a_hub_data_set_may_have_different_sizes_where_they_are_cut() -> TestResult {
    let images = [png(2, 3, &[1; 6])?, png(5, 4, &[2; 20])?];
    let server = Server::start(
        "datasets/owner/name",
        vec![
            ("default/train/0000.parquet", image_parquet(&images, &[0, 1], 2)?),
            ("default/test/0000.parquet", shard(&[0])?),
        ],
    )?;
    let home = tempfile::tempdir()?;
    let of = |extra: &[(&str, &str)]| run(&server.endpoint, home.path(), "hub:owner/name", extra);
    assert_eq!(of(&[("CHANDLERY_TEST_IMAGES", "1")])?, r#"["2x3x1", "5x4x1"]"#);
    // Test rows come from other images of the training split, so that those of the test split are
    // not fetched.
    assert!(server.requests().iter().all(|request| !request.contains("default/test")));
    assert!(of(&[])?.contains("make all images of a data set the same"));
    Ok(())
}
