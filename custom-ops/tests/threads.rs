//! Ops within the tasks of rayon: a thread that waits takes up no op on a tensor that it holds.
#![allow(missing_docs, clippy::expect_used)]
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::arrays::scale_into_;
use chandlery_ops::core::{Replay, normal, uniform};
use chandlery_ops::layers::{Factors, gemm_};
use chandlery_ops::{Philox, Precision};
use std::sync::mpsc;
use std::time::Duration;

/// Runs `work` in a thread of its own and fails where it does not end, as threads do not that wait
/// for themselves.
fn ends(what: &str, work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    ended.recv_timeout(Duration::from_secs(120)).unwrap_or_else(|_| panic!("{what} does not end"))
}

/// An op in each of many tasks of a pool, all on one tensor, with tasks between them that are soon
/// done: their threads then take up parts of an op, and the one that waits for these parts takes up
/// the next task.
fn tasks(threads: usize, op: impl Fn() -> Result<()> + Send + Sync) -> Result<()> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
    let (failed, failures) = mpsc::channel();
    pool.in_place_scope(|scope| {
        for task in 0..6000 {
            let (op, failed) = (&op, failed.clone());
            scope.spawn(move |_| {
                if task % 12 > 0 {
                    std::hint::black_box((0..20_000).fold(task, |sum, i| std::hint::black_box(sum ^ i)));
                } else if let Err(error) = op() {
                    let _ = failed.send(error);
                }
            });
        }
    });
    drop(failed);
    failures.into_iter().next().map_or(Ok(()), Err)
}

#[test]
fn tasks_that_write_one_tensor_end() -> Result<()> {
    for threads in [1, 2, 4, 8] {
        ends(&format!("writing in {threads} threads"), move || {
            let (out, x) = (
                Tensor::zeros((256, 4096), DType::F32, &Cpu)?,
                uniform((256, 4096), &Cpu, Philox::new(1, 0))?,
            );
            tasks(threads, || scale_into_(&out, &x, 2.))?;
            assert_eq!(out.to_vec2::<f32>()?, (x * 2.)?.to_vec2::<f32>()?);
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn tasks_that_read_what_others_write_end() -> Result<()> {
    for threads in [2, 4, 8] {
        ends(&format!("products in {threads} threads"), move || {
            let (a, b) =
                (normal((600, 200), &Cpu, Philox::new(2, 0))?, normal((200, 300), &Cpu, Philox::new(2, 1))?);
            let (c, d) =
                (Tensor::zeros((600, 300), DType::F32, &Cpu)?, Tensor::zeros((600, 300), DType::F32, &Cpu)?);
            tasks(threads, || {
                gemm_(&c, &a, &b, Factors::OVERWRITE, Precision::F32)?;
                scale_into_(&d, &c, 1.)
            })?;
            scale_into_(&d, &c, 1.)?;
            assert_eq!(d.to_vec2::<f32>()?, c.to_vec2::<f32>()?);
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn an_op_has_as_many_threads_as_the_pool_that_calls_it() -> Result<()> {
    // A product of many blocks gives the same bits in each.
    let (a, b) = (normal((900, 300), &Cpu, Philox::new(3, 0))?, normal((300, 200), &Cpu, Philox::new(3, 1))?);
    let product = || -> Result<Vec<Vec<f32>>> {
        let c = Tensor::zeros((900, 200), DType::F32, &Cpu)?;
        gemm_(&c, &a, &b, Factors::OVERWRITE, Precision::F32)?;
        c.to_vec2::<f32>()
    };
    let want = product()?;
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        assert!(pool.install(product)? == want, "{threads} threads");
    }
    Ok(())
}

#[test]
fn steps_that_share_tensors_end() -> Result<()> {
    for threads in [1, 2, 4] {
        ends(&format!("steps in {threads} threads"), move || {
            let (a, b) =
                (normal((300, 200), &Cpu, Philox::new(4, 0))?, normal((200, 300), &Cpu, Philox::new(4, 1))?);
            let (c, d) =
                (Tensor::zeros((300, 300), DType::F32, &Cpu)?, Tensor::zeros((300, 300), DType::F32, &Cpu)?);
            let step = move || {
                gemm_(&c, &a, &b, Factors::OVERWRITE, Precision::F32)?;
                scale_into_(&d, &c, 2.)?;
                gemm_(&c, &b.t()?, &a.t()?, Factors::OVERWRITE, Precision::F32)?;
                gemm_(&c, &a, &b, Factors::Host { alpha: 1., beta: 0. }, Precision::F32)
            };
            // In threads of the program, and in tasks of a pool.
            std::thread::scope(|scope| {
                let steps = (0..threads).map(|_| scope.spawn(|| runs(&step, 50)));
                let steps: Vec<_> = steps.collect();
                steps.into_iter().try_for_each(|done| done.join().expect("a thread"))
            })?;
            tasks(threads, || runs(&step, 3))
        })?;
    }
    Ok(())
}

/// Runs a step so often, each time by one recording: the first run shows that it has many kernels.
fn runs(step: &(impl Fn() -> Result<()> + Clone + Send + Sync + 'static), n: usize) -> Result<()> {
    let mut replay = Replay::new(&Cpu, step.clone());
    (0..n).try_for_each(|_| replay.run())
}

#[test]
fn a_step_as_a_whole_gives_the_bits_of_its_kernels_one_by_one() -> Result<()> {
    let (a, b) = (normal((300, 200), &Cpu, Philox::new(5, 0))?, normal((200, 300), &Cpu, Philox::new(5, 1))?);
    let c = Tensor::zeros((300, 300), DType::F32, &Cpu)?;
    let (to, other) = (c.clone(), Tensor::zeros((300, 300), DType::F32, &Cpu)?);
    let step = move || {
        gemm_(&other, &a, &b, Factors::OVERWRITE, Precision::F32)?;
        gemm_(&to, &other, &other, Factors::OVERWRITE, Precision::F32)?;
        scale_into_(&other, &to, 0.5)
    };
    step()?;
    let want = c.to_vec2::<f32>()?;
    for threads in [1, 2, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        let mut replay = Replay::new(&Cpu, step.clone());
        for run in 0..4 {
            scale_into_(&c, &Tensor::zeros((300, 300), DType::F32, &Cpu)?, 1.)?;
            pool.install(|| replay.run())?;
            assert!(c.to_vec2::<f32>()? == want, "{threads} threads, run {run}");
        }
    }
    Ok(())
}
