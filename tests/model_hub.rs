//! Models of the hub, played by a server on the loopback interface: as the real one answers, both
//! files of one commit, and which of them are fetched. Each run is a process of its own, this same
//! executable asked for the test [`child`].
#[path = "../datasets/tests/common/process.rs"]
mod process;
#[allow(dead_code)] // The tests of data sets use more of it.
#[path = "../datasets/tests/common/server.rs"]
mod server;
use candle::Device;
use chandlery::pretrained::model_type;
use chandlery::rbm::{Rbm, RbmConfig};
use chandlery::{LoadOptions, Model};
use chandlery_ops::Philox;
use process::BoxResult;
use server::{Bytes, COMMIT, Manner, Server};
use std::path::Path;

type TestResult = BoxResult<()>;

const ID: &str = "owner/model";
const WEIGHTS: &str = "/model.safetensors";
const NEXT: &str = "fedcba9876543210fedcba9876543210fedcba98";

/// Not a test of its own: what [`run`] runs.
#[test]
#[ignore = "the other tests of this file run it, as a process of its own"]
fn child() {
    let spec = std::env::var("CHANDLERY_TEST_SPEC").unwrap_or_default();
    if std::env::var_os("CHANDLERY_TEST_TYPE").is_some() {
        match model_type(&spec) {
            Ok(model) => println!("RESULT {model}"),
            Err(e) => println!("RESULT {e}"),
        }
        return;
    }
    let revision = std::env::var("CHANDLERY_TEST_REVISION").ok();
    match Rbm::from_pretrained(&spec, &LoadOptions { revision, ..LoadOptions::default() }) {
        Ok(rbm) => println!("RESULT {} hidden units", rbm.config().n_hidden),
        Err(e) => println!("RESULT {e}"),
    }
}

fn run(server: &Server, home: &Path, spec: &str, extra: &[(&str, &str)]) -> BoxResult<String> {
    process::run(&server.endpoint, home, &[&[("CHANDLERY_TEST_SPEC", spec)], extra].concat())
}

/// The files of a model with so many hidden units, so that those of two models do not go together.
fn files(n_hidden: usize) -> BoxResult<Vec<(&'static str, Vec<u8>)>> {
    let folder = tempfile::tempdir()?;
    Rbm::init(RbmConfig::new(40, n_hidden), Philox::new(1, 0), &Device::Cpu)?
        .save_pretrained(folder.path())?;
    let read = |name: &'static str| Ok((name, std::fs::read(folder.path().join(name))?));
    ["config.json", "model.safetensors"].into_iter().map(read).collect()
}

fn serve(manner: Manner) -> BoxResult<Server> {
    let server = Server::start(ID, files(3)?)?;
    server.behave(manner);
    Ok(server)
}

#[test]
fn a_model_comes_whatever_way_the_hub_sends_its_files() -> TestResult {
    let cuts = vec![(WEIGHTS, 70), ("signed=1", 70)];
    for bytes in [Bytes::Here, Bytes::Cached, Bytes::Elsewhere] {
        for manner in
            [Manner { bytes, ..Manner::default() }, Manner { bytes, cuts: cuts.clone(), ..Manner::default() }]
        {
            let (home, server) = (tempfile::tempdir()?, serve(Manner { token: Some("secret"), ..manner })?);
            assert_eq!(
                run(&server, home.path(), ID, &[("HF_TOKEN", "secret")])?,
                "3 hidden units",
                "{bytes:?}"
            );
            let leaks = |asked: &server::Asked| {
                asked.line.contains("elsewhere") && asked.header.contains_key("authorization")
            };
            assert!(!server.asked().iter().any(leaks), "the token went to another host");
            // From then on the cache is enough.
            assert_eq!(run(&server, home.path(), ID, &[])?, "3 hidden units");
            assert_eq!(run(&server, home.path(), ID, &[("HF_HUB_OFFLINE", "1")])?, "3 hidden units");
            assert_eq!(server.requests(), [] as [String; 0]);
        }
    }
    Ok(())
}

#[test]
fn both_files_are_of_one_commit() -> TestResult {
    // The branch moves while the configuration comes.
    let (home, server) =
        (tempfile::tempdir()?, serve(Manner { hold: Some("/config.json"), ..Manner::default() })?);
    let child = process::start(&server.endpoint, home.path(), &[("CHANDLERY_TEST_SPEC", ID)])?;
    server.wait_for(1, &format!("GET /{ID}/resolve/{COMMIT}/config.json"));
    server.commit("main", NEXT, files(5)?);
    server.release();
    assert_eq!(process::result(child, &server.endpoint, home.path())?, "3 hidden units");
    // It moved after the configuration alone was fetched, for the type of the model.
    let (home, server) = (tempfile::tempdir()?, serve(Manner::default())?);
    assert_eq!(run(&server, home.path(), ID, &[("CHANDLERY_TEST_TYPE", "1")])?, "rbm");
    server.commit("main", NEXT, files(5)?);
    assert_eq!(run(&server, home.path(), ID, &[])?, "5 hidden units");
    Ok(())
}

#[test]
fn a_revision_of_a_model() -> TestResult {
    let server = serve(Manner::default())?;
    server.commit("refs/pr/1", NEXT, files(5)?);
    let home = tempfile::tempdir()?;
    for (spec, want) in [
        (ID.to_owned(), "3 hidden units"),
        (format!("{ID}@refs/pr/1"), "5 hidden units"),
        (format!("{ID}@{NEXT}"), "5 hidden units"),
        (format!("{ID}@{COMMIT}"), "3 hidden units"),
        (format!("hub:{ID}@main"), "3 hidden units"),
        (
            format!("{ID}@v9"),
            "owner/model@v9: no such folder, and the hub gives no config.json of a model of this name: hub owner/model: has no revision v9 at \
             HUB; choose a branch, a tag or a whole commit that HUB/owner/model shows",
        ),
    ] {
        assert_eq!(run(&server, home.path(), &spec, &[])?, want, "{spec}");
    }
    // The same by the option, which stands in place of one in the id.
    let asked = [("CHANDLERY_TEST_REVISION", "refs/pr/1")];
    assert_eq!(run(&server, home.path(), ID, &asked)?, "5 hidden units");
    assert_eq!(
        run(&server, home.path(), &format!("{ID}@main"), &asked)?,
        "owner/model@main: revision must be none for a folder and for an id that names one, got refs/pr/1"
    );
    assert_eq!(run(&server, home.path(), "runs/dbn-run", &asked)?, "runs/dbn-run: no such folder");
    Ok(())
}

#[test]
fn weights_are_not_fetched_for_the_type_nor_of_another_model() -> TestResult {
    let (home, mut other) = (tempfile::tempdir()?, files(3)?);
    let config = String::from_utf8(other.remove(0).1)?.replace("\"rbm\"", "\"dictionary\"");
    let server = serve(Manner::default())?;
    server.commit("main", NEXT, vec![("config.json", config.into_bytes()), other.remove(0)]);
    assert_eq!(run(&server, home.path(), ID, &[("CHANDLERY_TEST_TYPE", "1")])?, "dictionary");
    let text = run(&server, home.path(), ID, &[])?;
    assert!(text.contains("this model is of type dictionary, not rbm"), "{text}");
    let fetched = |line: &String| line.starts_with("GET ") && line.ends_with(WEIGHTS);
    assert!(!server.requests().iter().any(fetched));
    Ok(())
}

#[test]
fn what_the_hub_does_not_give() -> TestResult {
    let (home, server) =
        (tempfile::tempdir()?, serve(Manner { token: Some("secret"), ..Manner::default() })?);
    let at = "owner/model: no such folder, and the hub gives no config.json of a model of this name: hub owner/model: config.json";
    assert_eq!(
        run(&server, home.path(), ID, &[])?,
        format!(
            "{at} not found at HUB, or not for everyone; check the spelling of OWNER/NAME; for a private or gated model set HF_TOKEN"
        )
    );
    assert_eq!(
        run(&server, home.path(), ID, &[("HF_HUB_OFFLINE", "1")])?,
        format!("{at} not in the cache HOME/hub; unset HF_HUB_OFFLINE to download it")
    );
    server.behave(Manner { status: Some("429 Too Many Requests\r\nRetry-After: 900"), ..Manner::default() });
    assert_eq!(
        run(&server, home.path(), ID, &[])?,
        format!(
            "{at} not in the cache, and HUB asks for fewer requests (429); wait 900 s and run again, or set HF_TOKEN"
        )
    );
    Ok(())
}

#[test]
fn a_mistyped_folder_does_not_ask_the_hub() -> TestResult {
    let (home, server) = (tempfile::tempdir()?, serve(Manner::default())?);
    // `parity` is here, and not this folder below it; others are no names of the hub.
    for spec in
        ["parity/dbn-run", "./parity/dbn-run", "dbn-run", "runs/dbn-run", "/nor/here", "a/b/c", "../a"]
    {
        assert_eq!(run(&server, home.path(), spec, &[])?, format!("{spec}: no such folder"));
    }
    assert_eq!(server.requests(), [] as [String; 0]);
    Ok(())
}
