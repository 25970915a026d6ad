//! The data that a saved model is used on: what a command line names, else that of its run.
use crate::options::{DataArgs, RowsArgs};
use crate::report::note_usual_data;
use crate::session::info::data_of;
use anyhow::Context;
use chandlery_datasets::Dataset;
use std::path::Path;

/// The data set that is read where none is named.
const DATA: &str = "mnist-sample";

impl RowsArgs {
    /// The data set for the network in this folder or with this hub id. Without --data, the options
    /// given here that say how rows are read override those of the run.
    ///
    /// # Errors
    /// When MODEL is the folder of a run whose data cannot be read, and there is no --data.
    pub fn of(&self, model: &str) -> anyhow::Result<DataArgs> {
        Ok(self.or_those_of(self.of_run(model)?))
    }

    /// The data of the run in this folder, where it is wanted.
    fn of_run(&self, model: &str) -> anyhow::Result<Option<DataArgs>> {
        if self.data.is_some() {
            return Ok(None);
        }
        let run = data_of(Path::new(model))
            .with_context(|| format!("{model}: the data of this run is not known; name it with --data"))?;
        Ok(run.map(|(data, _)| data))
    }

    /// Opens the data set for the network in this folder or with this hub id.
    ///
    /// # Errors
    /// As [`of`](Self::of) and [`DataArgs::open`]; the message names the run whose data cannot be
    /// opened.
    pub fn open(&self, model: &str) -> anyhow::Result<Dataset> {
        let run = self.of_run(model)?;
        if self.data.is_none() && run.is_none() {
            note_usual_data(model, DATA);
        }
        self.named(model, self.or_those_of(run).open())
    }

    /// The data that was opened; an error names the run whose data it is.
    ///
    /// # Errors
    /// That of opening.
    pub fn named<T>(&self, model: &str, data: anyhow::Result<T>) -> anyhow::Result<T> {
        match self.data {
            Some(_) => data,
            None => data.with_context(|| {
                format!("{model}: the data of this run cannot be opened; name other data with --data")
            }),
        }
    }

    /// The same for a network whose run is known: the data that it was trained on.
    pub fn or_those_of(&self, run: Option<DataArgs>) -> DataArgs {
        if let Some(data) = &self.data {
            return self.of_data(data);
        }
        match run {
            Some(run) => {
                let test_data = self.test_data.clone().or(run.test_data);
                DataArgs { test_data, read: self.read.above(&run.read), cut: self.cut.above(&run.cut), ..run }
            }
            None => self.of_data(DATA),
        }
    }

    fn of_data(&self, data: &str) -> DataArgs {
        let (read, cut) = (self.read.clone(), self.cut.clone());
        DataArgs { data: data.to_owned(), test_data: self.test_data.clone(), read, cut, base: None }
    }
}
