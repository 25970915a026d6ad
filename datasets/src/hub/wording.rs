//! How the user is told what went wrong.
use super::client::Client;
use super::failure::Failure;
use super::place::{Kind, Place, Settings};
use crate::Error;
use crate::error::one_line;

/// Words a failure; `file` is what was being fetched, none while listing.
pub(super) fn worded(
    place: &Place,
    settings: &Settings,
    client: &Client,
    file: Option<&str>,
    failure: Failure,
) -> Error {
    let of = file.map(|file| format!("{file} ")).unwrap_or_default();
    let (endpoint, revision) = (&settings.endpoint, &place.revision);
    let thing = match place.kind {
        Kind::Model => "model",
        Kind::Dataset => "data set",
    };
    let spelling = "check the spelling of OWNER/NAME";
    let page = format!("{endpoint}/{}", place.page());
    let (what, fix) = match failure {
        Failure::Status { status: 401 | 403, code: Some(code), .. } if code == "GatedRepo" => (
            format!("{of}not for everyone: the {thing} is gated"),
            format!("ask for access at {page}, and set HF_TOKEN to a token that may read it"),
        ),
        // The hub answers so for names that do not exist, too.
        Failure::Status { status: 401 | 403, .. } if !client.has_token() => (
            format!("{of}not found at {endpoint}, or not for everyone"),
            format!("{spelling}; for a private or gated {thing} set HF_TOKEN"),
        ),
        Failure::Status { status: status @ (401 | 403), .. } => (
            format!("{of}not found at {endpoint}, or not for this token ({status})"),
            format!("{spelling}, and that the token of HF_TOKEN is valid and may read {page}"),
        ),
        Failure::Status { status: 404, code: Some(code), .. } if code == "RevisionNotFound" => {
            if place.is_default() && place.kind == Kind::Dataset {
                return no_parquet(place);
            }
            (
                format!("has no revision {revision} at {endpoint}"),
                format!("choose a branch, a tag or a whole commit that {page} shows"),
            )
        }
        Failure::Status { status: 404, code, .. } => {
            let at = match code.as_deref() {
                Some("EntryNotFound") => format!("at {endpoint} in revision {revision} (404)"),
                _ => format!("at {endpoint} (404)"),
            };
            let fix = match (place.kind, place.is_default()) {
                (Kind::Dataset, true) => format!("{spelling}, and that the hub's viewer shows the data set"),
                (Kind::Dataset, false) => format!("{spelling}, and that the revision holds parquet files"),
                (Kind::Model, _) => spelling.to_owned(),
            };
            (format!("{of}not found {at}"), fix)
        }
        Failure::Status { status: 429, wait, .. } => {
            let wait = wait.map(|wait| format!("{} s", wait.as_secs()));
            let wait = wait.unwrap_or_else(|| "some minutes".to_owned());
            let token = if client.has_token() { "" } else { ", or set HF_TOKEN" };
            (
                format!("{of}not in the cache, and {endpoint} asks for fewer requests (429)"),
                format!("wait {wait} and run again{token}"),
            )
        }
        Failure::Status { status: status @ 500.., .. } => (
            format!(
                "{of}not in the cache {} and {endpoint} is out of order ({status})",
                settings.cache.display()
            ),
            without_network(place.kind, "run again later", "no hub"),
        ),
        Failure::Status { status, .. } => {
            (format!("{of}could not be fetched: {endpoint} answers {status}"), "run again later".to_owned())
        }
        Failure::Unreachable => (
            format!("{of}not in the cache {} and {endpoint} cannot be reached", settings.cache.display()),
            without_network(place.kind, "check the network and HF_ENDPOINT", "neither"),
        ),
        Failure::Cut(why) => (
            format!(
                "{of}not in the cache {} and {endpoint} does not answer ({why})",
                settings.cache.display()
            ),
            without_network(place.kind, "check the network and HF_ENDPOINT", "neither"),
        ),
        Failure::Short(got, want) => {
            let want = want.map(|want| format!(" of {want}")).unwrap_or_default();
            (
                format!("the download of {of}broke off at {got}{want} bytes"),
                "run again to go on with it".to_owned(),
            )
        }
        Failure::Damaged(what) => (
            format!("the download of {of}is damaged: {what}"),
            "run again to fetch it afresh; if it stays so, try without a proxy or mirror".to_owned(),
        ),
        Failure::Wrong(what) => (
            format!("{of}could not be fetched: {endpoint} {what}"),
            "check HF_ENDPOINT and the proxy".to_owned(),
        ),
        Failure::Token => (
            "the token holds characters that cannot be sent".to_owned(),
            "set HF_TOKEN to a token".to_owned(),
        ),
        Failure::Io(path, e) => (
            format!("cannot write to the cache: {}: {e}", path.display()),
            "check its permissions and free space, or set HF_HUB_CACHE".to_owned(),
        ),
    };
    Error::Hub { id: place.id.clone(), what: one_line(what), fix }
}

fn without_network(kind: Kind, fix: &str, needs: &str) -> String {
    match kind {
        Kind::Model => fix.to_owned(),
        Kind::Dataset => format!("{fix}, or use mnist-sample, which needs {needs}"),
    }
}

/// Of a data set that is nothing for [`table`](crate::table).
pub(super) fn no_parquet(place: &Place) -> Error {
    let fix = match place.is_default() {
        true => "choose a data set that the hub's viewer shows",
        false => "choose a revision that has some, or leave it out",
    };
    let what = format!("has no parquet files in {}", place.revision);
    Error::Hub { id: place.id.clone(), what, fix: fix.to_owned() }
}

/// What a run without the network says.
pub(super) fn offline(place: &Place, settings: &Settings, file: Option<&str>) -> Error {
    let of = file.map(|file| format!("{file} ")).unwrap_or_default();
    Error::Hub {
        id: place.id.clone(),
        what: format!("{of}not in the cache {}", settings.cache.display()),
        fix: "unset HF_HUB_OFFLINE to download it".to_owned(),
    }
}
