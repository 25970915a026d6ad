//! Section 2: products of 1000×1000 matrices, with transfers and without.
use super::super::{Cell, Paper, Table};
use super::printed::SECTION2;
use super::seconds_of_one;
use anyhow::Result;
use candle::{DType, Device, Tensor};
use chandlery_ops::layers::{Factors, gemm_};
use chandlery_ops::{Philox, Precision};

/// Sides of the matrices, and products of a group.
const SIDE: usize = 1000;
const GROUP: usize = 25;

/// Operands of a group, in host memory.
struct Work {
    a: Tensor,
    b: Tensor,
    /// The same, each apart: of a view candle would copy all that it is of.
    pairs: Vec<[Tensor; 2]>,
}

impl Work {
    fn new() -> Result<Self> {
        let draw =
            |stream| chandlery_ops::core::uniform((GROUP, SIDE, SIDE), &Device::Cpu, Philox::new(2, stream));
        let (a, b) = (draw(0)?, draw(1)?);
        let pair = |i| Ok([a.get(i)?.force_contiguous()?, b.get(i)?.force_contiguous()?]);
        Ok(Self { pairs: (0..GROUP).map(pair).collect::<Result<_>>()?, a, b })
    }

    /// Products of the first `n` pairs, which are on their device.
    fn products(a: &Tensor, b: &Tensor, out: &Tensor, n: usize) -> Result<()> {
        for i in 0..n {
            gemm_(&out.get(i)?, &a.get(i)?, &b.get(i)?, Factors::OVERWRITE, Precision::F32)?;
        }
        Ok(())
    }

    /// Products of the first `n` pairs, each of which is copied to the device, as its result is
    /// copied back.
    fn each_transferred(&self, device: &Device, n: usize) -> Result<()> {
        for [a, b] in self.pairs.iter().take(n) {
            let (a, b) = (a.to_device(device)?, b.to_device(device)?);
            let out = Tensor::zeros((SIDE, SIDE), DType::F32, device)?;
            gemm_(&out, &a, &b, Factors::OVERWRITE, Precision::F32)?;
            out.to_device(&Device::Cpu)?;
        }
        Ok(())
    }

    /// The same with all operands copied together, and all results.
    fn transferred_together(&self, device: &Device) -> Result<()> {
        let (a, b) = (self.a.to_device(device)?, self.b.to_device(device)?);
        let out = Tensor::zeros((GROUP, SIDE, SIDE), DType::F32, device)?;
        Self::products(&a, &b, &out, GROUP)?;
        out.to_device(&Device::Cpu)?;
        Ok(())
    }
}

/// Seconds of one product and of the group on a device: resident, each transferred, transferred
/// together; transfers are none on a CPU.
struct Measured {
    one: f64,
    one_transferred: Option<f64>,
    group: f64,
    each: Option<f64>,
    together: Option<f64>,
}

fn measure(work: &Work, device: &Device, repeats: u32, quick: bool) -> Result<Measured> {
    let (a, b) = (work.a.to_device(device)?, work.b.to_device(device)?);
    let out = Tensor::zeros((GROUP, SIDE, SIDE), DType::F32, device)?;
    let time =
        |call: &dyn Fn() -> Result<()>| seconds_of_one(device, repeats, |n| (0..n).try_for_each(|_| call()));
    let transfers = |call: &dyn Fn() -> Result<()>| (!device.is_cpu()).then(|| time(call)).transpose();
    let one = time(&|| Work::products(&a, &b, &out, 1))?;
    // A CPU makes one after the other.
    let group = match device.is_cpu() && quick {
        true => GROUP as f64 * one,
        false => time(&|| Work::products(&a, &b, &out, GROUP))?,
    };
    Ok(Measured {
        one,
        group,
        one_transferred: transfers(&|| work.each_transferred(device, 1))?,
        each: transfers(&|| work.each_transferred(device, GROUP))?,
        together: transfers(&|| work.transferred_together(device))?,
    })
}

/// The table of the experiment in the text.
pub(super) fn section2(paper: &mut Paper) -> Result<()> {
    if !paper.wants("section-2") {
        return Ok(());
    }
    let (work, repeats, quick) = (Work::new()?, paper.repeats(), paper.quick());
    let places = paper.places()?;
    let mut measured = Vec::new();
    for place in &places {
        measured.push(place.run(|| measure(&work, &place.device, repeats, quick))?);
    }
    let (one_ms, share_one, share_group) = SECTION2;
    let computing_ms = one_ms * share_one;
    let group_ms = GROUP as f64 * computing_ms;
    type Of = fn(&Measured) -> Option<f64>;
    // What is done, its products, the paper's milliseconds, ours.
    let lines: [(&str, f64, Option<f64>, Of); 5] = [
        ("one product with transfers", 1., Some(one_ms), |m| m.one_transferred),
        ("one product, operands resident", 1., Some(computing_ms), |m| Some(m.one)),
        ("25 products, each with transfers", 25., Some(GROUP as f64 * one_ms), |m| m.each),
        ("25 products, transfers together", 25., Some(group_ms / share_group), |m| m.together),
        ("25 products, operands resident", 25., Some(group_ms), |m| Some(m.group)),
    ];
    let mut heads = vec!["", "paper ms", "paper computing %"];
    let names: Vec<String> =
        places.iter().flat_map(|place| [format!("{} ms", place.name()), "computing %".to_owned()]).collect();
    heads.extend(names.iter().map(String::as_str));
    let mut table = Table::new(
        "Section 2: products of two 1000x1000 matrices with transfers to the GPU and without",
        &heads,
    );
    for (name, products, paper_ms, of) in lines {
        let share = |ms: f64, one: f64| Cell::number(100. * products * one / ms, 1);
        let mut row = vec![
            Cell::text(name),
            Cell::or_none(paper_ms, |ms| Cell::number(ms, 2)),
            Cell::or_none(paper_ms, |ms| share(ms, computing_ms)),
        ];
        for m in &measured {
            let resident = if products == 1. { m.one } else { m.group / products };
            row.push(Cell::or_none(of(m), |s| Cell::number(1e3 * s, 3)));
            row.push(Cell::or_none(of(m), |s| share(s, resident)));
        }
        table.row(row);
    }
    table.note(
        "The paper gives 20 ms and 0.5 % for one product, and 25 % for 25 of them with transfers together; its other numbers are computed from \
         these.",
    );
    table.note(
        "On a CPU nothing is transferred, and a quick run times one product for 25. On a GPU operands are copied from pageable host memory and results back to it.",
    );
    paper.table(table)
}
