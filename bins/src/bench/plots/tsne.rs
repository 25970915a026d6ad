//! t-SNE: seconds by rows, and divergence against seconds, on a GPU and on a CPU.
use super::{curve, line, panel};
use crate::bench::page::{Row, Table, number};
use anyhow::Result;
use chandlery::pictures::curves::{Curve, Panel};

/// The columns of cuML, and what the plots call them.
const CUML: [(&str, &str); 2] =
    [("cuML 26.10 FFT, s (KL)", "cuML, FFT"), ("cuML Barnes-Hut, s (KL)", "cuML, Barnes-Hut")];

/// Seconds of the data on which libraries on a CPU are compared.
const FEW: &str = "MNIST's first 10,000, s";

pub(super) fn panels(page: &str) -> Result<Vec<Panel>> {
    let (gpu, cpu) = (Table::read(page, "t-SNE", "data")?, Table::read(page, "t-SNE", FEW)?);
    Ok(vec![rows_on_gpu(&gpu)?, rows_on_cpu(&cpu)?, divergence_on_gpu(&gpu)?, divergence_on_cpu(&cpu)?])
}

/// Of whole data sets, whose names end with their sizes, each by the default method.
fn rows_on_gpu(table: &Table) -> Result<Panel> {
    let of = |head: &str, name: &str| {
        let rows = |row: Row<'_>| row.name().contains('×').then(|| number(row.name())).flatten();
        curve(name, table, |row| Some((rows(row)? / 1e3, row.number(head)?)))
    };
    let cuml = CUML.iter().map(|(head, name)| Ok(of(head, name)?.dashed()));
    let curves = std::iter::once(of("ours, s", "ours, FFT")).chain(cuml);
    panel("Four data sets on one H200", "rows, thousands", "seconds", curves)
}

/// Of MNIST, whose rows stand in the heads of the columns of seconds, by libraries with several.
fn rows_on_cpu(table: &Table) -> Result<Panel> {
    let turned = table.turned();
    let seconds = |row: Row<'_>| row.name().ends_with(", s").then(|| number(row.name())).flatten();
    let of = |name: &str| curve(&short(name), &turned, |row| Some((seconds(row)? / 1e3, row.number(name)?)));
    let coloured = |(place, row): (usize, Row<'_>)| Ok(of(row.name())?.coloured(place));
    let curves = table.rows().enumerate().map(coloured).collect::<Result<Vec<_>>>()?;
    let lines = curves.into_iter().filter(|curve| curve.points.len() > 1);
    let lines = lines.map(|line| Ok(if line.name == "ours" { line } else { line.dashed() }));
    panel("MNIST on two CPU cores", "rows, thousands", "seconds", lines)
}

/// Of MNIST, by FFT and in the line below it by Barnes-Hut.
fn divergence_on_gpu(table: &Table) -> Result<Panel> {
    let mut below = table.rows().skip_while(|row| !row.name().starts_with("MNIST "));
    let ours = |row: Row<'_>| Some((row.number("ours, s")?, row.number("KL")?));
    let first = below.next();
    let second = below.find(|row| row.name() == "the same, Barnes-Hut");
    let mut curves = vec![
        line("ours, FFT", first.and_then(ours))?,
        line("ours, Barnes-Hut", second.and_then(ours))?.coloured(3),
    ];
    for (colour, (head, name)) in CUML.iter().enumerate() {
        let of = |row: Row<'_>| {
            let cell = row.cell(head);
            Some((number(cell)?, number(cell.split_once('(')?.1)?))
        };
        curves.push(line(name, first.and_then(of))?.coloured(colour + 1));
    }
    divergence("MNIST on one H200", curves)
}

/// Of each library.
fn divergence_on_cpu(table: &Table) -> Result<Panel> {
    let point = |row: Row<'_>| Some((row.number(FEW)?, row.number("KL")?));
    let curves = table.rows().map(|row| line(&short(row.name()), point(row)));
    divergence("MNIST's first 10,000 on two CPU cores", curves.collect::<Result<_>>()?)
}

fn divergence(title: &str, curves: Vec<Curve>) -> Result<Panel> {
    Ok(Panel::new(title, "seconds", "Kullback-Leibler divergence, nats", curves).log_x().labelled())
}

/// The name of a library without its version: what stands before it, and the method after it.
fn short(name: &str) -> String {
    let (library, rest) = name.split_once(' ').unwrap_or((name, ""));
    format!("{library}{}", rest.find(',').map_or("", |at| &rest[at..]))
}
