//! The sources that this project implements, reproduced: each of their tables and figures with the
//! paper's numbers, the same algorithm on this machine, and our best.
//!
//! | module     | what                                                                |
//! |------------|---------------------------------------------------------------------|
//! | `document` | tables, figures and headlines as text, Markdown and JSON            |
//! | `cell`     | what stands in a table, and the size from which one form is faster  |
//! | others     | one source each: `SECTIONS`, and `run`, which makes them            |

mod cell;
mod cuml;
mod document;
mod irofti;
mod klaus;
mod kumar;
mod raina;

use super::common::TimingArgs;
use super::place::Place;
use crate::device::describe;
use crate::report::Report;
use anyhow::{Context, Result, ensure};
use candle::Device;
use chandlery::pictures::curves::{self, Panel};
use chandlery::pictures::write_png;
use chandlery_datasets::whole::write_whole;
use chandlery_datasets::{DataOptions, Dataset};
use clap::{Args, ValueEnum};
use document::{Document, Picture, Section};
use image::RgbImage;
use std::io::{Error, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

pub(super) use cell::{Cell, break_even};
pub(super) use document::{Headline, Table};

/// The set on the Hugging Face hub.
const MNIST: &str = "mnist";

/// Options of `bench paper`.
#[derive(Debug, Args)]
pub struct PaperArgs {
    /// The paper: the name of an author, cuml, or all.
    #[arg(value_enum)]
    paper: Source,
    #[command(flatten)]
    timing: TimingArgs,
    /// Make each table and figure small, in a minute on two cores.
    #[arg(long)]
    quick: bool,
    /// Parts to run, several separated by commas. They are tables and figures, such as
    /// table-1,figure-4. Default: all.
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    only: Vec<String>,
    /// MNIST, for figure 4 of kumar and a row of cuml: a name, a folder or a file. Where the name
    /// mnist cannot be had, the built-in digits stand in, and the page says so.
    #[arg(long, value_name = "DATA", default_value = MNIST)]
    mnist: String,
    /// Folder for PAPERS.md, the page of all papers made there so far, and papers/, which has
    /// NAME.md, NAME.json and the pictures.
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
}

/// The papers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Source {
    /// Denoising autoencoders on a GPU: Kumar and Giaquinto.
    Kumar,
    /// t-SNE on a GPU: Chan, Rao, Huang and Canny 2018, as cuML has it.
    Cuml,
    /// Dictionary learning in parallel: Irofti 2016.
    Irofti,
    /// Sparse autoencoders in C, Matlab and CUDA: Klaus and Welles 2014.
    Klaus,
    /// Deep belief networks and sparse coding on a GPU: Raina, Madhavan and Ng 2009.
    Raina,
    /// One after the other.
    All,
}

/// A paper: its name on the command line, what it is, its tables and figures, and what makes them.
struct Known {
    source: Source,
    title: &'static str,
    sections: &'static [&'static str],
    run: fn(&mut Paper) -> Result<()>,
}

impl Known {
    fn name(&self) -> String {
        self.source.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

const KNOWN: &[Known] = &[
    Known {
        source: Source::Kumar,
        title: "Denoising autoencoder (Kumar and Giaquinto)",
        sections: kumar::SECTIONS,
        run: kumar::run,
    },
    Known { source: Source::Cuml, title: "t-SNE (cuML)", sections: cuml::SECTIONS, run: cuml::run },
    Known {
        source: Source::Irofti,
        title: "Dictionary learning (Irofti 2016)",
        sections: irofti::SECTIONS,
        run: irofti::run,
    },
    Known {
        source: Source::Klaus,
        title: "Sparse autoencoder (Klaus and Welles 2014)",
        sections: klaus::SECTIONS,
        run: klaus::run,
    },
    Known {
        source: Source::Raina,
        title: "Deep belief networks and sparse coding (Raina, Madhavan and Ng 2009)",
        sections: raina::SECTIONS,
        run: raina::run,
    },
];

/// Makes the tables and figures that the command line asks for.
pub(super) fn run(args: &PaperArgs) -> Result<()> {
    let chosen: Vec<&Known> =
        KNOWN.iter().filter(|known| args.paper == Source::All || args.paper == known.source).collect();
    let ids: Vec<&str> = chosen.iter().flat_map(|known| known.sections).copied().collect();
    for id in &args.only {
        ensure!(ids.contains(&id.as_str()), "--only: must be of {}, got {id:?}", ids.join(", "));
    }
    let folder = args.out.join(document::FOLDER);
    std::fs::create_dir_all(&folder).with_context(|| format!("--out {}", args.out.display()))?;
    let device = args.timing.common.open_device()?;
    let open = |name| chandlery_datasets::open(name, &DataOptions::default());
    let mnist = (args.mnist != MNIST).then(|| open(&args.mnist)).transpose().context("--mnist")?;
    let report = Report::new(args.timing.common.json);
    report.line(&format!("on {}, medians of {} runs", describe(&device), args.timing.repeats))?;
    let mut documents = Vec::new();
    for known in chosen {
        let document = Document::new(known.name(), known.title, describe(&device), args.quick);
        let mut paper = Paper {
            args,
            folder: &folder,
            device: &device,
            report: &report,
            mnist: mnist.as_ref(),
            document,
            open: None,
        };
        paper.report.line(&format!("\n{}", known.title))?;
        (known.run)(&mut paper)?;
        documents.push(paper.finish(known.sections)?);
    }
    let made = KNOWN.iter().map(|known| read(&folder.join(format!("{}.md", known.name()))));
    let made = made.filter_map(Result::transpose).collect::<Result<Vec<_>>>()?;
    write(&args.out.join("PAPERS.md"), &document::whole(&made))?;
    report.finish_as_is(&documents)
}

/// The text of a file; none where there is none.
fn read(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Err(err) if err.kind() == ErrorKind::NotFound => Ok(None),
        read => Ok(Some(read.with_context(|| format!("{}: cannot read", path.display()))?)),
    }
}

/// A paper that is being reproduced.
pub(super) struct Paper<'a> {
    args: &'a PaperArgs,
    /// For its files.
    folder: &'a Path,
    device: &'a Device,
    report: &'a Report,
    /// What is MNIST, where it was told.
    mnist: Option<&'a Dataset>,
    document: Document,
    /// The section that is being made, and when it began.
    open: Option<(String, Instant)>,
}

impl Paper<'_> {
    /// Whether tables and figures are to be small.
    pub fn quick(&self) -> bool {
        self.args.quick
    }

    /// The data set that is MNIST.
    pub fn mnist(&self) -> Result<Dataset, chandlery_datasets::Error> {
        match self.mnist {
            Some(set) => Ok(set.clone()),
            None => chandlery_datasets::open(MNIST, &DataOptions::default()),
        }
    }

    /// The device that is asked for.
    pub fn device(&self) -> &Device {
        self.device
    }

    /// Timed runs of which medians are taken.
    pub fn repeats(&self) -> u32 {
        if self.args.quick { self.args.timing.repeats.min(3) } else { self.args.timing.repeats }
    }

    /// One thread, all cores, and the GPU where one is asked for.
    pub fn places(&self) -> Result<Vec<Place>> {
        Place::all(self.device, true)
    }

    /// Whether the section `id`, a table or a figure, is asked for; what is made from now on
    /// belongs to it.
    pub fn wants(&mut self, id: &str) -> bool {
        self.close();
        let wanted = self.args.only.is_empty() || self.args.only.iter().any(|only| only == id);
        self.open = wanted.then(|| (id.to_owned(), Instant::now()));
        wanted
    }

    /// Adds a table, and prints it.
    pub fn table(&mut self, table: Table) -> Result<()> {
        self.report.line(&table.text())?;
        self.add(Section::Table(table))
    }

    /// Adds a figure of curves, `NAME-file.png`.
    pub fn figure(&mut self, file: &str, caption: &str, panels: &[Panel]) -> Result<()> {
        self.picture(file, caption, &curves::draw_pixels(panels)?)
    }

    /// Adds a picture, `NAME-file.png`.
    pub fn picture(&mut self, file: &str, caption: &str, picture: &RgbImage) -> Result<()> {
        let file = format!("{}-{file}.png", self.document.name());
        let path = self.folder.join(&file);
        write_png(picture, &path)?;
        self.report.line(&format!("{}: {caption}", path.display()))?;
        self.add(Section::Picture(Picture { file, caption: caption.to_owned() }))
    }

    /// Adds a line to the table of all papers' headlines.
    pub fn headline(&mut self, headline: Headline) {
        self.document.headline(headline);
    }

    fn add(&mut self, section: Section) -> Result<()> {
        let (id, _) =
            self.open.as_ref().context("bench paper: a table was made before its section was asked for")?;
        self.document.add(id, section);
        self.write()
    }

    /// Writes what was made so far, which stays if the rest is not made.
    fn write(&self) -> Result<()> {
        let at = |suffix: &str| self.folder.join(format!("{}.{suffix}", self.document.name()));
        write(&at("md"), &self.document.markdown())?;
        write(&at("json"), &format!("{}\n", serde_json::to_string_pretty(&self.document)?))
    }

    /// Ends the open section.
    fn close(&mut self) {
        if let Some((id, start)) = self.open.take() {
            self.document.took(&id, start.elapsed().as_secs_f64());
        }
    }

    /// Writes what was made, all of which was asked for.
    fn finish(mut self, sections: &[&str]) -> Result<Document> {
        self.close();
        for id in sections {
            let wanted = self.args.only.is_empty() || self.args.only.iter().any(|only| only == id);
            ensure!(
                !wanted || self.document.has(id),
                "bench paper {}: {id} was not made",
                self.document.name()
            );
        }
        self.write()?;
        Ok(self.document)
    }
}

/// Writes a file, whole or not at all.
pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    Ok(write_whole::<Error>(path, |file| file.write_all(text.as_bytes()))?)
}
