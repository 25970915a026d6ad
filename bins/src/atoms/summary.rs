//! What the JSON of every command says, by the same names.
use crate::device::describe;
use anyhow::Result;
use candle::Device;
use chandlery::dictionary::DictionaryConfig;
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

/// The dictionary that was made or used, what its codes came to, and how long that took.
#[derive(Debug, Serialize)]
pub struct Summary<'a> {
    /// What was written.
    pub out: &'a Path,
    pub n_atoms: usize,
    pub n_features: usize,
    /// Atoms that a code may have.
    pub n_nonzero: usize,
    /// Atoms of a code, on average.
    pub mean_count: f64,
    /// Of the values, and so of their errors; none where a file does not tell.
    pub unit: Option<&'a str>,
    pub device: String,
    /// Time of learning the dictionary, 0 if nothing was learned; absent for commands that never
    /// learn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training_seconds: Option<f64>,
    /// All computations; left out where a session says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

impl<'a> Summary<'a> {
    /// Of a command that coded by this dictionary, without times.
    pub fn new(out: &'a Path, config: &DictionaryConfig, unit: &'a str, device: &Device) -> Self {
        Self {
            out,
            n_atoms: config.n_atoms,
            n_features: config.n_features,
            n_nonzero: config.n_nonzero,
            mean_count: 0.,
            unit: Some(unit),
            device: describe(device),
            training_seconds: None,
            seconds: None,
        }
    }

    /// This and what the command has of its own.
    ///
    /// # Errors
    /// When a value cannot be JSON.
    pub fn with(&self, own: Value) -> Result<Value> {
        let mut all = serde_json::to_value(self)?;
        if let (Some(all), Value::Object(own)) = (all.as_object_mut(), own) {
            all.extend(own);
        }
        Ok(all)
    }
}
