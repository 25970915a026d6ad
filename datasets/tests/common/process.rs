//! A test's client as a process of its own, since clients of the hub read the environment of the
//! process.
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub type BoxResult<T> = Result<T, Box<dyn std::error::Error>>;

/// Starts this same executable with its test `child`, told what to do by variables.
pub fn start(endpoint: &str, home: &Path, extra: &[(&str, &str)]) -> BoxResult<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["child", "--exact", "--ignored", "--nocapture"])
        .env("HF_ENDPOINT", endpoint)
        .env("HF_HOME", home);
    let token = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"];
    for name in ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE"].iter().chain(&token) {
        command.env_remove(name);
    }
    // A proxy of the surroundings would stand between the client and the loopback interface.
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(name);
    }
    command.env("NO_PROXY", "127.0.0.1");
    command.envs(extra.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command.spawn()?)
}

/// The line that it printed after `RESULT`, with the cache as `HOME` and the endpoint as `HUB`.
pub fn result(child: Child, endpoint: &str, home: &Path) -> BoxResult<String> {
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.split_once("RESULT "));
    let Some((_, line)) = line else {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the child gave no result: {text} {complaint}").into());
    };
    Ok(line.replace(&home.display().to_string(), "HOME").replace(endpoint, "HUB"))
}

/// Both.
pub fn run(endpoint: &str, home: &Path, extra: &[(&str, &str)]) -> BoxResult<String> {
    result(start(endpoint, home, extra)?, endpoint, home)
}
