//! Reads the chosen columns of the files of a training split and perhaps a test split.
use super::leaf::LeafReader;
use super::pages::open_leaf;
use super::schema::{Column, Kind, Plan, Schema};
use crate::decode::{AnyImages, Encoded, ImageRows};
use crate::guard::quietly;
use crate::labels::{check_classes, class_numbers};
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

/// Opens the files of a training split and perhaps a test split; `remedy` says what to do about a damaged one.
pub(crate) fn open_files(
    at: &str,
    train: &[PathBuf],
    test: &[PathBuf],
    options: &DataOptions,
    remedy: &dyn Fn(&Path) -> String,
) -> Result<Dataset> {
    let train = read_split(at, train, options, remedy)?;
    let mut class_names = train.class_names.clone();
    if class_names.is_none()
        && let Some(Labels::Texts(texts)) = &train.labels
    {
        let mut names = texts.clone();
        names.sort_unstable();
        names.dedup();
        class_names = Some(names);
    }
    check_classes(at, class_names.as_ref().map_or(0, Vec::len))?;
    let train = train.finish(at, class_names.as_deref())?;
    let test = match test {
        [] => None,
        files => {
            let test = read_split(at, files, options, remedy)?.finish(at, class_names.as_deref())?;
            test.check_images_like(&train, at, "choose splits of the same shape")?;
            Some(test)
        }
    };
    Dataset::new(at, train, test, class_names)
}

/// The images of the files of a split, of any sizes; `remedy` as for [`open_files`].
pub(crate) fn open_images(
    at: &str,
    files: &[PathBuf],
    options: &DataOptions,
    remedy: &dyn Fn(&Path) -> String,
) -> Result<AnyImages> {
    let images = AnyImages::new(options.colour, options.memory_limit());
    let mut reading = Reading::new(options, Some(Rows::AnyImages(images)));
    reading.files(files, remedy)?;
    match reading.rows {
        Some(Rows::AnyImages(images)) => Ok(images),
        _ => Err(Error::format(at, "has no files", "choose another split")),
    }
}

/// Labels as a file has them.
#[derive(Debug)]
enum Labels {
    Numbers(Vec<f64>),
    Texts(Vec<String>),
}

/// A split, its labels not yet numbered.
#[derive(Debug)]
struct RawSplit {
    rows: Arc<dyn Source>,
    image: Option<ImageShape>,
    labels: Option<Labels>,
    class_names: Option<Vec<String>>,
}

impl RawSplit {
    /// Numbers the labels; texts must be among `class_names`.
    fn finish(self, at: &str, class_names: Option<&[String]>) -> Result<Split> {
        let labels = match self.labels {
            None => None,
            Some(Labels::Numbers(numbers)) if numbers.iter().all(|&n| n == -1.) => None,
            Some(Labels::Numbers(numbers)) => {
                if let Some(row) = numbers.iter().position(|n| n.fract() != 0. || n.is_nan()) {
                    return Err(Error::format(
                        at,
                        format!("row {row} has label {}", numbers[row]),
                        "labels are class numbers from 0 on",
                    ));
                }
                let numbers: Vec<i64> = numbers.into_iter().map(|n| n as i64).collect();
                let classes = class_numbers(at, &numbers)?;
                if let Some(names) = class_names
                    && let Some(row) = classes.iter().position(|&class| class as usize >= names.len())
                {
                    return Err(Error::format(
                        at,
                        format!(
                            "row {row} has label {}, but it names {}",
                            classes[row],
                            crate::count(names.len(), "class")
                        ),
                        "correct the labels, or choose others",
                    ));
                }
                Some(classes)
            }
            Some(Labels::Texts(texts)) => {
                let names = class_names.unwrap_or_default();
                let number = |text: &String| {
                    names
                        .binary_search(text)
                        .map(|i| i as u32)
                        .map_err(|_| Error::missing(at, "class", text, names))
                };
                Some(texts.iter().map(number).collect::<Result<_>>()?)
            }
        };
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
    remedy: &dyn Fn(&Path) -> String,
) -> Result<RawSplit> {
    let mut reading = Reading::new(options, None);
    reading.files(files, remedy)?;
    reading.finish(at)
}

/// A split in the making.
struct Reading<'a> {
    options: &'a DataOptions,
    /// The columns, chosen in the first file.
    plan: Option<Plan>,
    rows: Option<Rows>,
    labels: Option<Labels>,
    /// Rows still wanted.
    left: usize,
}

impl<'a> Reading<'a> {
    /// `rows` are what is gathered where it does not go by the columns of the first file.
    fn new(options: &'a DataOptions, rows: Option<Rows>) -> Self {
        Self { options, plan: None, rows, labels: None, left: options.rows_of(u32::MAX as usize) }
    }

    fn files(&mut self, files: &[PathBuf], remedy: &dyn Fn(&Path) -> String) -> Result<()> {
        for path in files {
            // Version 60 of the `parquet` crate indexes some damaged pages without looking; `pages` checks what it can
            // beforehand. What is being built is dropped with the error, so nothing half-made is seen.
            quietly(|| self.file(path, remedy(path)))
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
        let schema = Schema::of(file.metadata());
        let plan = match &self.plan {
            None => schema.plan(&at, self.options)?,
            Some(plan) => schema.same(&at, plan)?,
        };
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
        Ok(RawSplit {
            rows,
            image,
            labels: self.labels,
            class_names: self.plan.and_then(|plan| plan.class_names),
        })
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
    fn read(&self, n: usize, plan: &Plan, rows: &mut Rows, labels: &mut Option<Labels>) -> Result<()> {
        let mut leaves = self.leaves(&plan.rows)?;
        let mut label_leaf = match &plan.labels {
            None => None,
            Some(column) => Some((self.leaf(column)?, column.kind)),
        };
        let mut done = 0;
        let most = if matches!(rows, Rows::AnyImages(_)) { IMAGES_PER_BATCH } else { ROWS_PER_BATCH };
        while done < n {
            let batch = most.min(n - done);
            self.read_rows(batch, self.first_row + done, &mut leaves, plan, rows)?;
            match &mut label_leaf {
                None => {}
                Some((leaf, Kind::Text)) => {
                    let texts = leaf.texts(batch)?;
                    match labels.get_or_insert_with(|| Labels::Texts(Vec::new())) {
                        Labels::Texts(all) => all.extend(texts),
                        Labels::Numbers(_) => {}
                    }
                }
                Some((leaf, _)) => {
                    let numbers = leaf.scalars(batch)?;
                    match labels.get_or_insert_with(|| Labels::Numbers(Vec::new())) {
                        Labels::Numbers(all) => all.extend(numbers),
                        Labels::Texts(_) => {}
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
                sink.push(&values, n_columns)
            }
            _ => Ok(()),
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
            descriptor.max_def_level(),
            descriptor.max_rep_level(),
            self.first_row,
        ))
    }
}
