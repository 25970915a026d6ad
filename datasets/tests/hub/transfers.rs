//! How the bytes come: redirects, other hosts, parts, packed bytes, servers in trouble and
//! connections that break.
use super::server::{Bytes, Manner, Range, sha256};
use super::*;
use std::path::PathBuf;

const TRAIN: &str = "train/0000.parquet";

fn elsewhere() -> Manner {
    Manner { bytes: Bytes::Elsewhere, ..Manner::default() }
}

/// Loads MNIST from a server of this manner.
fn load(manner: Manner) -> BoxResult<(String, Server)> {
    let (home, server) = (tempfile::tempdir()?, mnist_with(manner)?);
    Ok((run(&server.endpoint, home.path(), "mnist", &[])?, server))
}

/// The ranges that were asked for of the training file.
fn ranges(server: &Server, end: &str) -> Vec<Option<String>> {
    let asked =
        server.asked().into_iter().filter(|asked| asked.line.ends_with(end) && asked.line.starts_with("GET"));
    asked.map(|asked| asked.header.get("range").cloned()).collect()
}

/// The names of what is in the folder of blobs.
fn blobs(home: &Path) -> BoxResult<Vec<String>> {
    let folder: PathBuf = home.join("hub/datasets--ylecun--mnist/blobs");
    let names = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<std::io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

#[test]
fn a_relative_redirect_of_the_hub_is_followed() -> TestResult {
    let (text, server) = load(Manner { bytes: Bytes::Cached, ..Manner::default() })?;
    assert_eq!(text, MNIST);
    let of = server.requests();
    let cached = |line: &&String| line.contains(" /api/resolve-cache/datasets/ylecun/mnist/");
    assert_eq!(of.iter().filter(cached).count(), 4, "{of:?}");
    Ok(())
}

#[test]
fn bytes_of_another_host_come_without_the_token_and_have_their_sha256() -> TestResult {
    let (home, server) = (tempfile::tempdir()?, mnist_with(Manner { token: Some("secret"), ..elsewhere() })?);
    assert_eq!(run(&server.endpoint, home.path(), "mnist", &[("HF_TOKEN", "secret")])?, MNIST);
    let mut of_others = 0;
    for asked in server.asked() {
        let token = asked.header.get("authorization").map(String::as_str);
        if asked.line.contains("elsewhere") {
            assert!(asked.line.starts_with("GET "), "the other host is asked for bytes only: {}", asked.line);
            assert_eq!(token, None, "the token went to another host");
            of_others += 1;
        } else {
            assert_eq!(token, Some("Bearer secret"));
        }
    }
    assert_eq!(of_others, 2);
    let files = mnist_files(&[2, 1, 0], &[1])?;
    let mut tags: Vec<_> = files.iter().map(|(_, bytes)| sha256(bytes)).collect();
    tags.sort();
    assert_eq!(blobs(home.path())?, tags);
    Ok(())
}

#[test]
fn nothing_packed_is_asked_for() -> TestResult {
    for bytes in [Bytes::Here, Bytes::Cached, Bytes::Elsewhere] {
        let (_, server) = load(Manner { bytes, cuts: vec![(TRAIN, 7)], ..Manner::default() })?;
        for asked in server.asked() {
            let encoding = asked.header.get("accept-encoding").map(String::as_str);
            assert_eq!(encoding, Some("identity"), "{}", asked.line);
        }
    }
    Ok(())
}

#[test]
fn a_connection_that_is_cut_goes_on_where_it_was() -> TestResult {
    let manner = Manner { cuts: vec![(TRAIN, 7), (TRAIN, 20)], ..Manner::default() };
    for manner in [manner.clone(), Manner { range: Range::Unnamed, ..manner }] {
        let (text, server) = load(manner.clone())?;
        assert_eq!(text, MNIST, "{manner:?}");
        let want = [None, Some("bytes=7-"), Some("bytes=20-")].map(|range| range.map(str::to_owned));
        assert_eq!(ranges(&server, TRAIN), want, "{manner:?}");
    }
    Ok(())
}

#[test]
fn a_connection_of_another_host_that_is_cut_goes_on_where_it_was() -> TestResult {
    let (text, server) = load(Manner { cuts: vec![("signed=1", 9)], ..elsewhere() })?;
    assert_eq!(text, MNIST);
    let want = [None, Some("bytes=9-".to_owned()), None];
    assert_eq!(ranges(&server, "signed=1"), want);
    Ok(())
}

#[test]
fn a_server_that_passes_over_ranges_gives_the_whole_again() -> TestResult {
    let manner = Manner {
        cuts: vec![(TRAIN, 30), (TRAIN, 11), (TRAIN, 50)],
        range: Range::Ignored,
        ..Manner::default()
    };
    assert_eq!(load(manner)?.0, MNIST);
    Ok(())
}

#[test]
fn bytes_that_come_packed_all_the_same_are_unpacked() -> TestResult {
    for bytes in [Bytes::Here, Bytes::Cached, Bytes::Elsewhere] {
        let manner = Manner { packs: true, bytes, ..Manner::default() };
        assert_eq!(load(manner.clone())?.0, MNIST);
        // Packed bytes that break off are not the file.
        let end = if bytes == Bytes::Elsewhere { "signed=1" } else { "0000.parquet" };
        assert_eq!(load(Manner { cuts: vec![(end, 30), (end, 60)], ..manner })?.0, MNIST);
    }
    Ok(())
}

#[test]
fn bytes_in_chunks_need_no_length() -> TestResult {
    let manner = Manner { chunks: true, ..Manner::default() };
    assert_eq!(load(manner.clone())?.0, MNIST);
    assert_eq!(load(Manner { cuts: vec![(TRAIN, 12)], ..manner.clone() })?.0, MNIST);
    assert_eq!(load(Manner { cuts: vec![(TRAIN, 12)], range: Range::Ignored, ..manner })?.0, MNIST);
    Ok(())
}

#[test]
fn without_any_length_a_cut_could_not_be_told() -> TestResult {
    let (text, _) = load(Manner { without: vec!["content-length"], ..Manner::default() })?;
    let want = "hub ylecun/mnist: mnist/test/0000.parquet could not be fetched: HUB does not say how long the file is; check \
                HF_ENDPOINT and the proxy";
    assert_eq!(text, want);
    Ok(())
}

#[test]
fn a_download_that_breaks_off_for_good_is_gone_on_with_by_the_next_run() -> TestResult {
    let home = tempfile::tempdir()?;
    let server = mnist_with(Manner { cut: Some((TRAIN, 40)), ..Manner::default() })?;
    let whole = shard(&[2, 1, 0])?.len();
    assert_eq!(
        run(&server.endpoint, home.path(), "mnist", &[])?,
        format!(
            "hub ylecun/mnist: the download of mnist/train/0000.parquet broke off at 40 of {whole} bytes; run again to go on with it"
        )
    );
    assert_eq!(blobs(home.path())?.iter().filter(|name| name.ends_with(".incomplete")).count(), 1);
    server.requests();
    server.behave(Manner::default());
    assert_eq!(run(&server.endpoint, home.path(), "mnist", &[])?, MNIST);
    assert_eq!(ranges(&server, TRAIN), [Some("bytes=40-".to_owned())]);
    assert!(blobs(home.path())?.iter().all(|name| !name.ends_with(".incomplete")));
    Ok(())
}

#[test]
fn a_silent_connection_is_made_again() -> TestResult {
    let home = tempfile::tempdir()?;
    let server = mnist_with(Manner { hold: Some(TRAIN), ..Manner::default() })?;
    let extra = [("CHANDLERY_TEST_SPEC", "mnist"), ("HF_HUB_DOWNLOAD_TIMEOUT", "0.2")];
    let child = process::start(&server.endpoint, home.path(), &extra)?;
    let get = "/train/0000.parquet";
    // The head, and the bytes.
    server.wait_for(2, get);
    server.behave(Manner::default());
    assert_eq!(process::result(child, &server.endpoint, home.path())?, MNIST);
    let half = shard(&[2, 1, 0])?.len() / 2;
    assert_eq!(ranges(&server, TRAIN), [None, Some(format!("bytes={half}-"))]);
    Ok(())
}

#[test]
fn bytes_with_another_sha256_are_not_the_file() -> TestResult {
    let home = tempfile::tempdir()?;
    let (right, wrong) = (shard(&[1])?, vec![7; shard(&[1])?.len()]);
    let server = mnist_with(Manner { wrong: Some(wrong.clone()), ..elsewhere() })?;
    assert_eq!(
        run(&server.endpoint, home.path(), "mnist", &[])?,
        format!(
            "hub ylecun/mnist: the download of mnist/test/0000.parquet is damaged: its SHA-256 is {}, and the hub says {}; run again \
             to fetch it afresh; if it stays so, try without a proxy or mirror",
            sha256(&wrong),
            sha256(&right)
        )
    );
    assert_eq!(blobs(home.path())?, [] as [String; 0]);
    server.behave(elsewhere());
    assert_eq!(run(&server.endpoint, home.path(), "mnist", &[])?, MNIST);
    Ok(())
}

#[test]
fn bytes_of_another_length_are_not_the_file() -> TestResult {
    let whole = shard(&[1])?.len();
    for n in [0, whole - 1, whole + 1] {
        for manner in [Manner::default(), elsewhere()] {
            let home = tempfile::tempdir()?;
            let server = mnist_with(Manner { wrong: Some(vec![7; n]), ..manner })?;
            let text = run(&server.endpoint, home.path(), "mnist", &[])?;
            let want = format!(
                "hub ylecun/mnist: the download of mnist/test/0000.parquet is damaged: it has {n} bytes, and the hub says {whole}; "
            );
            assert!(text.starts_with(&want), "{text}");
            assert_eq!(blobs(home.path())?, [] as [String; 0]);
        }
    }
    // In chunks the length shows at the end only.
    let home = tempfile::tempdir()?;
    let server = mnist_with(Manner { wrong: Some(vec![7; whole + 1]), chunks: true, ..elsewhere() })?;
    let text = run(&server.endpoint, home.path(), "mnist", &[])?;
    assert!(
        text.contains(&format!("is damaged: it is longer than the {whole} bytes of the file; ")),
        "{text}"
    );
    Ok(())
}

#[test]
fn a_damaged_beginning_of_an_earlier_run_is_fetched_afresh() -> TestResult {
    let test = shard(&[1])?;
    for length in [5, test.len(), test.len() + 5] {
        let home = tempfile::tempdir()?;
        let server = mnist_with(elsewhere())?;
        let folder = home.path().join("hub/datasets--ylecun--mnist/blobs");
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(format!("{}.incomplete", sha256(&test))), vec![1; length])?;
        assert_eq!(run(&server.endpoint, home.path(), "mnist", &[])?, MNIST, "{length}");
    }
    Ok(())
}

#[test]
fn a_busy_hub_is_asked_again_after_the_wait_that_it_asks_for() -> TestResult {
    for status in [
        "429 Too Many Requests\r\nRetry-After: 0",
        "429 Too Many Requests\r\nRateLimit: \"resolvers\";r=0;t=0",
        "503 Service Unavailable\r\nRetry-After: 0",
        "500 Internal Server Error\r\nRetry-After: 0",
        "502 Bad Gateway\r\nRetry-After: 0",
        "504 Gateway Timeout",
    ] {
        let (text, server) = load(Manner {
            first: vec![("test/0000.parquet", status), (TRAIN, status)],
            ..Manner::default()
        })?;
        assert_eq!(text, MNIST, "{status}");
        assert_eq!(server.requests().len(), 6, "{status}");
    }
    // On the other host, too.
    let first = vec![("signed=1", "503 Slow Down\r\nRetry-After: 0")];
    assert_eq!(load(Manner { first, ..elsewhere() })?.0, MNIST);
    Ok(())
}

#[test]
fn a_hub_that_stays_busy_or_out_of_order() -> TestResult {
    let file = "hub ylecun/mnist: mnist/test/0000.parquet not in the cache";
    for (status, want, n) in [
        (
            "429 Too Many Requests\r\nRetry-After: 0",
            format!("{file}, and HUB asks for fewer requests (429); wait 0 s and run again, or set HF_TOKEN"),
            4,
        ),
        (
            "429 Too Many Requests\r\nRetry-After: 3600",
            format!(
                "{file}, and HUB asks for fewer requests (429); wait 3600 s and run again, or set HF_TOKEN"
            ),
            1,
        ),
        (
            "503 Service Unavailable\r\nRetry-After: 0",
            format!(
                "{file} HOME/hub and HUB is out of order (503); run again later, or use mnist-sample, which needs no hub"
            ),
            4,
        ),
    ] {
        let (home, server) =
            (tempfile::tempdir()?, mnist_with(Manner { status: Some(status), ..Manner::default() })?);
        assert_eq!(run(&server.endpoint, home.path(), "mnist", &[])?, want);
        assert_eq!(server.requests().len(), n, "{status}");
    }
    Ok(())
}

#[test]
fn a_hub_out_of_order_is_not_needed_where_the_cache_is_full() -> TestResult {
    let (home, server) = (tempfile::tempdir()?, mnist()?);
    let spec = "hub:ylecun/mnist";
    let want = run(&server.endpoint, home.path(), spec, &[])?;
    assert_eq!(want, format!("hub:ylecun/{MNIST}"));
    server.behave(Manner { status: Some("503 Service Unavailable\r\nRetry-After: 0"), ..Manner::default() });
    assert_eq!(run(&server.endpoint, home.path(), spec, &[])?, want);
    Ok(())
}

#[test]
fn a_mirror_without_head() -> TestResult {
    for status in ["405 Method Not Allowed", "501 Not Implemented"] {
        let (home, server) = (tempfile::tempdir()?, mnist()?);
        let page = "/datasets/ylecun/mnist/resolve";
        let test = format!("HEAD {page}/refs%2Fconvert%2Fparquet/mnist/test/0000.parquet");
        let train = format!("HEAD {page}/{COMMIT}/mnist/train/0000.parquet");
        // The server keeps what it is told for as long as the test runs.
        let first = [test, train].map(|line| (&*Box::leak(line.into_boxed_str()), status));
        server.behave(Manner { first: first.to_vec(), ..Manner::default() });
        assert_eq!(run(&server.endpoint, home.path(), "mnist", &[])?, MNIST);
    }
    Ok(())
}

#[test]
fn a_server_that_is_no_hub() -> TestResult {
    for (header, what) in [("x-repo-commit", "X-Repo-Commit"), ("etag", "an ETag that can name a file")] {
        let (text, _) = load(Manner { without: vec![header], ..Manner::default() })?;
        let want = format!(
            "hub ylecun/mnist: mnist/test/0000.parquet could not be fetched: HUB does not answer as a hub does: {what} is missing; \
             check HF_ENDPOINT and the proxy"
        );
        assert_eq!(text, want);
    }
    let status = "302 Found\r\nLocation: /round/and/round";
    let (text, _) = load(Manner { status: Some(status), ..Manner::default() })?;
    assert!(text.contains("HUB sends from one address to the next without an end; "), "{text}");
    Ok(())
}
