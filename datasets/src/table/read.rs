//! Reads the chosen columns of the files of a training split and perhaps a test split.
use super::classes::{Found, Numbering, of_column};
use super::leaf::LeafReader;
use super::pages::open_leaf;
use super::schema::{Column, Plan, Schema};
use super::types::Kind;
use crate::decode::{AnyImages, Encoded, ImageRows};
use crate::guard::caught;
use crate::labels::{Classes, Labels};
use crate::options::DataOptions;
use crate::rounded::RoundedSink;
use crate::sink::RowSink;
use crate::{Dataset, Error, ImageShape, Result, Source, Split};
use ::parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows that are decoded at a time.
const ROWS_PER_BATCH: usize = 2048;

/// Images of any sizes that are decoded at a time: they may be large.
const IMAGES_PER_BATCH: usize = 64;

/// Opens the files of a training split and perhaps a test split; `remedy` says what to do about a
/// damaged one.
pub(crate) fn open_files(
    at: &str,
    train: &[PathBuf],
    test: &[PathBuf],
    options: &DataOptions,
    remedy: &dyn Fn(&Path) -> String,
) -> Result<Dataset> {
    let no_labels = no_labels(train, options, remedy)?;
    let of = |files: &[PathBuf]| read_split(at, files, options, &no_labels, remedy);
    let mut train = of(train)?;
    let (column_names, notes) = (train.column_names.take(), std::mem::take(&mut train.notes));
    let (labels, column) = (train.labels.take(), train.label_column.take());
    let place =
        column.as_ref().map_or_else(|| at.to_owned(), |column| format!("{at}, column '{}'", column.name));
    let column = column.as_ref();
    let numbers = Numbering { at: &place, column, class_names: train.class_names.take() };
    let Classes { numbers: classes, names, left_out } = numbers.of_training(labels)?;
    let train = train.finish(classes)?;
    let test = match test {
        [] => None,
        files => {
            let mut test = of(files)?;
            let labels = test.labels.take().filter(|_| left_out.is_none());
            let numbers = Numbering { at: &place, column, class_names: names.clone() };
            let test = test.finish(numbers.of_test(labels)?)?;
            test.check_images_like(&train, at, "choose splits of the same shape")?;
            Some(test)
        }
    };
    let dataset = Dataset::new(at, train, test, names)?;
    Ok(Dataset { column_names, notes, ..dataset }.without_labels(left_out))
}

/// Columns with a name of labels and of features that hold no classes.
fn no_labels(
    files: &[PathBuf],
    options: &DataOptions,
    remedy: &dyn Fn(&Path) -> String,
) -> Result<Vec<String>> {
    let options = DataOptions { labels: options.named_labels().map(str::to_owned), ..options.clone() };
    let mut no_labels = Vec::new();
    loop {
        let mut reading = Reading { labels_alone: true, ..Reading::new(&options, &no_labels, None) };
        reading.files(files, remedy)?;
        let doubted = reading.plan.filter(|plan| plan.labels_may_be_features).and_then(|plan| plan.labels);
        match (doubted, reading.labels) {
            // The hub's way to hide labels; and labels that are known of some rows alone are no
            // values.
            (Some(_), Some(Found::Numbers(numbers)))
                if numbers.iter().all(|&n| n == -1.) || numbers.iter().any(|n| n.is_nan()) =>
            {
                return Ok(no_labels);
            }
            (Some(column), Some(Found::Numbers(numbers)))
                if !matches!(of_column("", &column, &numbers), Labels::Numbers(_)) =>
            {
                no_labels.push(column.name);
            }
            _ => return Ok(no_labels),
        }
    }
}

/// The images of the files of a split, of any sizes; `remedy` as for [`open_files`].
pub(crate) fn open_images(
    at: &str,
    files: &[PathBuf],
    options: &DataOptions,
    remedy: &dyn Fn(&Path) -> String,
) -> Result<AnyImages> {
    let images = AnyImages::new(options.colour, options.memory_limit());
    let mut reading = Reading::new(options, &[], Some(Rows::AnyImages(images)));
    reading.files(files, remedy)?;
    match reading.rows {
        Some(Rows::AnyImages(images)) => Ok(images),
        _ => Err(Error::format(at, "has no files", "choose another split")),
    }
}

/// A split, its labels not yet numbered.
#[derive(Debug)]
struct RawSplit {
    rows: Arc<dyn Source>,
    image: Option<ImageShape>,
    labels: Option<Found>,
    /// The column of the labels.
    label_column: Option<Column>,
    class_names: Option<Vec<String>>,
    column_names: Option<Vec<String>>,
    notes: Vec<String>,
}

impl RawSplit {
    fn finish(self, labels: Option<Vec<u32>>) -> Result<Split> {
        Split::new(self.rows, labels)?.with_image(self.image)
    }
}

/// Rows on their way into a split.
enum Rows {
    Images(ImageRows),
    AnyImages(AnyImages),
    Bytes(RowSink<u8>, Option<usize>),
    Floats(RoundedSink, Option<usize>),
}

/// Reads `files` one after the other; `at` names the data set in errors.
fn read_split(
    at: &str,
    files: &[PathBuf],
    options: &DataOptions,
    no_labels: &[String],
    remedy: &dyn Fn(&Path) -> String,
) -> Result<RawSplit> {
    let mut reading = Reading::new(options, no_labels, None);
    reading.files(files, remedy)?;
    reading.finish(at)
}

/// A split in the making.
struct Reading<'a> {
    options: &'a DataOptions,
    /// Columns that were found to hold no labels.
    no_labels: &'a [String],
    /// Whether labels are read without rows, where they may be none.
    labels_alone: bool,
    /// The columns, chosen in the first file.
    plan: Option<Plan>,
    rows: Option<Rows>,
    labels: Option<Found>,
    /// Rows still wanted.
    left: usize,
}

impl<'a> Reading<'a> {
    /// `rows` are what is gathered where it does not go by the columns of the first file.
    fn new(options: &'a DataOptions, no_labels: &'a [String], rows: Option<Rows>) -> Self {
        let left = options.rows_of(u32::MAX as usize);
        Self { options, no_labels, labels_alone: false, plan: None, rows, labels: None, left }
    }

    fn files(&mut self, files: &[PathBuf], remedy: &dyn Fn(&Path) -> String) -> Result<()> {
        for path in files {
            // Version 60 of the `parquet` crate indexes some damaged pages without looking; `pages`
            // checks what it can beforehand. What is being built is dropped with the error, so
            // nothing half-made is seen.
            caught(|| self.file(path, remedy(path)))
                .unwrap_or_else(|| Err(Error::format(path.display(), "damaged", remedy(path))))?;
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, remedy: String) -> Result<()> {
        if self.left == 0 {
            return Ok(());
        }
        let at = path.display().to_string();
        let damaged = |e: ::parquet::errors::ParquetError| {
            Error::format(&at, format!("truncated or not a parquet file: {e}"), remedy.clone())
        };
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        let file = SerializedFileReader::new(file).map_err(damaged)?;
        if self.options.stay && file.metadata().file_metadata().num_rows() == 0 {
            return Err(Error::format(&at, "holds 0 rows", "give at least one row"));
        }
        let schema = Schema::of(file.metadata());
        let plan = match &self.plan {
            None => schema.plan(&at, self.options, self.no_labels)?,
            Some(plan) => schema.same(&at, plan)?,
        };
        if self.labels_alone && !plan.labels_may_be_features {
            self.left = 0;
            return Ok(());
        }
        if matches!(self.rows, Some(Rows::AnyImages(_))) && plan.rows[0].kind != Kind::Image {
            return Err(Error::no_images(&at));
        }
        let limit = self.options.memory_limit();
        let rows = self.rows.get_or_insert_with(|| match plan.rows[0].kind {
            Kind::Image => Rows::Images(ImageRows::new(self.options.colour, limit)),
            Kind::Vector { bytes: true } => Rows::Bytes(RowSink::new(limit), None),
            _ => Rows::Floats(RoundedSink::new(limit, self.options.centre.clone()), None),
        });
        let mut first_row = 0;
        for group in 0..file.num_row_groups() {
            let group = file.get_row_group(group).map_err(damaged)?;
            let there = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
            let n = there.min(self.left);
            let reader = GroupReader { at: &at, remedy: &remedy, group: group.as_ref(), first_row };
            let rows = if self.labels_alone { None } else { Some(&mut *rows) };
            reader.read(n, &plan, rows, &mut self.labels)?;
            first_row += there;
            self.left -= n;
        }
        self.plan = Some(plan);
        Ok(())
    }

    fn finish(self, at: &str) -> Result<RawSplit> {
        let (rows, image) = match self.rows {
            None | Some(Rows::AnyImages(_)) => {
                return Err(Error::format(at, "has no files", "choose another split"));
            }
            Some(Rows::Images(images)) => {
                let (rows, shape) = images.finish(at)?;
                (rows, Some(shape))
            }
            Some(Rows::Bytes(sink, width)) => (sink.finish(at, width.unwrap_or(0))?, None),
            Some(Rows::Floats(sink, width)) => (sink.finish(at, width.unwrap_or(0))?, None),
        };
        let Some(plan) = self.plan else {
            return Err(Error::format(at, "has no files", "choose another split"));
        };
        let is_table = plan.rows.iter().all(|column| column.kind == Kind::Number);
        let column_names = is_table.then(|| plan.rows.iter().map(|column| column.name.clone()).collect());
        let Plan { class_names, notes, labels: label_column, .. } = plan;
        Ok(RawSplit { rows, image, labels: self.labels, label_column, class_names, column_names, notes })
    }
}

struct GroupReader<'a> {
    at: &'a str,
    remedy: &'a str,
    group: &'a dyn RowGroupReader,
    /// Place of the group's first row in the file.
    first_row: usize,
}

impl GroupReader<'_> {
    /// Reads `n` rows, or their labels alone.
    fn read(
        &self,
        n: usize,
        plan: &Plan,
        mut rows: Option<&mut Rows>,
        labels: &mut Option<Found>,
    ) -> Result<()> {
        let mut leaves = self.leaves(&plan.rows)?;
        let mut label_leaf = match &plan.labels {
            None => None,
            Some(column) => Some((self.leaf(column)?, column)),
        };
        let mut done = 0;
        let most = if matches!(rows, Some(Rows::AnyImages(_))) { IMAGES_PER_BATCH } else { ROWS_PER_BATCH };
        while done < n {
            let batch = most.min(n - done);
            if let Some(rows) = &mut rows {
                self.read_rows(batch, self.first_row + done, &mut leaves, plan, rows)?;
            }
            match &mut label_leaf {
                None => {}
                Some((_, column)) if matches!(column.kind, Kind::Vector { .. }) => {
                    labels.get_or_insert(Found::Vectors);
                }
                Some((leaf, column)) if column.kind == Kind::Text => {
                    let texts = leaf.texts(batch)?;
                    if let Found::Texts(all) = labels.get_or_insert_with(|| Found::Texts(Vec::new())) {
                        all.extend(texts);
                    }
                }
                Some((leaf, _)) => {
                    let numbers = leaf.scalars_or_nan(batch)?;
                    if let Found::Numbers(all) = labels.get_or_insert_with(|| Found::Numbers(Vec::new())) {
                        all.extend(numbers);
                    }
                }
            }
            done += batch;
        }
        Ok(())
    }

    fn read_rows(
        &self,
        batch: usize,
        first_row: usize,
        leaves: &mut [LeafReader],
        plan: &Plan,
        rows: &mut Rows,
    ) -> Result<()> {
        match (rows, leaves) {
            (Rows::Images(images), [leaf]) => {
                let batch = leaf.bytes(batch)?;
                images.check(&batch, |i, bytes| Ok(self.encoded(plan, first_row + i, bytes)))?;
                images.extend(&batch, |i, bytes| Ok(self.encoded(plan, first_row + i, bytes)))
            }
            (Rows::AnyImages(images), [leaf]) => {
                let name = |i| format!("row {}", first_row + i);
                let batch = leaf.bytes(batch)?;
                images.extend(&batch, |i, bytes| Ok(self.encoded(plan, first_row + i, bytes)), name)
            }
            (Rows::Bytes(sink, width), [leaf]) => {
                let (values, wide) = leaf.vectors(batch, *width)?;
                *width = Some(wide);
                // The column is of unsigned 8-bit integers, so nothing is cut off.
                sink.push(&values.into_iter().map(|v| v as u8).collect::<Vec<_>>())
            }
            (Rows::Floats(sink, width), [leaf]) => {
                let (values, wide) = leaf.vectors(batch, *width)?;
                *width = Some(wide);
                self.check_finite(first_row, &values, wide)?;
                sink.push(&values, wide)
            }
            (Rows::Floats(sink, width), leaves) => {
                let n_columns = leaves.len();
                let mut values = vec![0f64; batch * n_columns];
                for (column, leaf) in leaves.iter_mut().enumerate() {
                    let places = values.iter_mut().skip(column).step_by(n_columns);
                    for (place, value) in places.zip(leaf.scalars(batch)?) {
                        *place = value;
                    }
                }
                *width = Some(n_columns);
                self.check_finite(first_row, &values, n_columns)?;
                sink.push(&values, n_columns)
            }
            _ => Ok(()),
        }
    }

    /// Names the first value that f32 does not hold as a finite number; rows are counted in the file.
    fn check_finite(&self, first_row: usize, values: &[f64], width: usize) -> Result<()> {
        match values.iter().map(|&value| value as f32).enumerate().find(|(_, value)| !value.is_finite()) {
            None => Ok(()),
            Some((i, value)) => Err(Error::NotFinite {
                at: self.at.to_owned(),
                row: first_row + i / width.max(1),
                column: i % width.max(1),
                value,
            }),
        }
    }

    /// An image, of which each row has one.
    fn encoded<B: Clone>(&self, plan: &Plan, row: usize, bytes: &B) -> Encoded<B> {
        Encoded { at: self.place(plan, row), bytes: bytes.clone(), page: None }
    }

    /// An image's place, for errors.
    fn place(&self, plan: &Plan, row: usize) -> String {
        format!("{}, column '{}', row {row}", self.at, plan.rows[0].name)
    }

    fn leaves(&self, columns: &[Column]) -> Result<Vec<LeafReader>> {
        columns.iter().map(|column| self.leaf(column)).collect()
    }

    fn leaf(&self, column: &Column) -> Result<LeafReader> {
        let at = format!("{}, column '{}'", self.at, column.name);
        let reader = open_leaf(self.group, column.leaf)
            .map_err(|e| Error::format(&at, format!("cannot be read: {e}"), self.remedy))?;
        let schema = self.group.metadata().schema_descr();
        let descriptor = schema.column(column.leaf);
        Ok(LeafReader::new(
            at,
            self.remedy,
            reader,
            column.numeric,
            (descriptor.max_def_level(), descriptor.max_rep_level()),
            self.first_row,
        ))
    }
}
