//! The descent of atoms where blocks share columns: the same as the reference, the same bits in
//! every run.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::codes::{AtomLength, descend_atoms_, descend_atoms_reference};
use chandlery_ops::core::normal;
use chandlery_tests::{assert_close, assert_same_bits, devices};

const CPU: Device = Device::Cpu;

/// Atoms of length 1.
fn unit_rows(n: usize, p: usize, dtype: DType) -> Result<Tensor> {
    let d = normal((n, p), &CPU, Philox::new(12, 0))?.to_dtype(DType::F64)?;
    d.broadcast_div(&d.sqr()?.sum_keepdim(1)?.sqrt()?)?.to_dtype(dtype)
}

/// `A` and `B` of random codes, a fifth of them not 0, on the CPU.
fn sums([m, n, p]: [usize; 3], dtype: DType) -> Result<(Tensor, Tensor)> {
    let uses = (normal((m, n), &CPU, Philox::new(11, 0))?.gt(0.85)?.to_dtype(DType::F32)? * 1.)?;
    let x = (normal((m, n), &CPU, Philox::new(11, 1))? * uses)?.to_dtype(DType::F64)?;
    let y = normal((m, p), &CPU, Philox::new(11, 2))?.to_dtype(DType::F64)?;
    Ok((x.t()?.matmul(&x)?.to_dtype(dtype)?, x.t()?.matmul(&y)?.to_dtype(dtype)?))
}

#[test]
fn descent_is_the_same_however_columns_are_shared_among_blocks() -> Result<()> {
    // A block; clusters of three and of eight; more blocks than a cluster has; more columns than
    // 132 blocks of 8 have; more atoms than shared memory holds rows of 8 columns of, in f32 and in
    // f64.
    for (m, n, p) in
        [(90, 33, 7), (90, 65, 20), (300, 100, 61), (300, 100, 200), (150, 40, 1100), (100, 5700, 9)]
    {
        for (dtype, eps) in [(DType::F32, 1e-6), (DType::F64, 1e-12)] {
            let (a, b) = sums([m, n, p], dtype)?;
            let d = unit_rows(n, p, dtype)?;
            for length in [AtomLength::One, AtomLength::AtMostOne] {
                let want = descend_atoms_reference(&d, &a, &b, 1, length)?;
                for device in devices()? {
                    let what = format!("{n} × {p}, {dtype:?}, {length:?} on {:?}", device.location());
                    let (a, b) = (a.to_device(&device)?, b.to_device(&device)?);
                    let [got, again] = [d.copy()?.to_device(&device)?, d.copy()?.to_device(&device)?];
                    descend_atoms_(&got, &a, &b, 1, length)?;
                    // A sum of n products of up to about 0.3, divided by A_jj, which some atoms
                    // have little of.
                    assert_close(&what, &got, &want, 0., 1000. * eps)?;
                    descend_atoms_(&again, &a, &b, 1, length)?;
                    assert_same_bits(&what, &again, &got)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn atoms_that_no_length_fits_stay_and_the_others_move_as_if_they_were_unused() -> Result<()> {
    let (n, p) = (70, 20);
    for (dtype, eps) in [(DType::F32, 1e-6), (DType::F64, 1e-12)] {
        let (a, b) = sums([200, n, p], dtype)?;
        let (mut a, mut b) =
            (a.to_dtype(DType::F64)?.to_vec2::<f64>()?, b.to_dtype(DType::F64)?.to_vec2::<f64>()?);
        // Atom 3 would become 0, atoms 6 and 40 a NaN, atom 34 infinite; atom 50 is unused.
        for row in &mut a {
            (row[3], row[50]) = (0., 0.);
        }
        (a[3], a[50]) = (vec![0.; n], vec![0.; n]);
        (a[3][3], b[3]) = (2., vec![0.; p]);
        (b[6][2], b[40][0], b[34][5]) = (f64::NAN, f64::NAN, f64::INFINITY);
        let (a, b) = (Tensor::new(a, &CPU)?.to_dtype(dtype)?, Tensor::new(b, &CPU)?.to_dtype(dtype)?);
        let d = unit_rows(n, p, dtype)?;
        let want = descend_atoms_reference(&d, &a, &b, 0, AtomLength::One)?;
        for device in devices()? {
            let what = format!("{dtype:?} on {:?}", device.location());
            let got = d.copy()?.to_device(&device)?;
            descend_atoms_(&got, &a.to_device(&device)?, &b.to_device(&device)?, 0, AtomLength::One)?;
            assert_close(&what, &got, &want, 0., 1000. * eps)?;
            for j in [3, 6, 34, 40, 50] {
                let row = |t: &Tensor| t.narrow(0, j, 1)?.copy();
                assert_same_bits(&format!("atom {j}, {what}"), &row(&got)?, &row(&d)?)?;
            }
        }
    }
    Ok(())
}
