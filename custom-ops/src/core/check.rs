//! Checks of operands, with their error messages in one place.
use candle::{DType, Result, Storage, Tensor};

/// Refuses a tensor that is not contiguous, of one of `dtypes` and of `shape`.
///
/// # Errors
/// One line: `op: name must …, got …`.
pub(crate) fn expect(op: &str, name: &str, t: &Tensor, dtypes: &[DType], shape: &[usize]) -> Result<()> {
    if t.dims() != shape {
        candle::bail!("{op}: {name} must have shape {shape:?}, got {:?}", t.dims())
    }
    expect_layout(op, name, t, dtypes)
}

/// [`expect`] for any shape.
pub(crate) fn expect_layout(op: &str, name: &str, t: &Tensor, dtypes: &[DType]) -> Result<()> {
    expect_dtype(op, name, t, dtypes)?;
    if !t.is_contiguous() {
        candle::bail!(
            "{op}: {name} must be contiguous, got shape {:?} with strides {:?}; call .contiguous() first",
            t.dims(),
            t.stride()
        )
    }
    Ok(())
}

/// Refuses a tensor of another type.
pub(crate) fn expect_dtype(op: &str, name: &str, t: &Tensor, dtypes: &[DType]) -> Result<()> {
    if dtypes.contains(&t.dtype()) {
        return Ok(());
    }
    let names: Vec<_> = dtypes.iter().map(|dtype| dtype.as_str()).collect();
    let wanted = match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    };
    candle::bail!("{op}: {name} must be {wanted}, got {:?}", t.dtype())
}

/// `[rows, cols]` of a contiguous matrix of one of `dtypes`; `what` names the sizes for the
/// message.
pub(crate) fn matrix(
    op: &str,
    name: &str,
    what: &str,
    t: &Tensor,
    dtypes: &[DType],
) -> Result<(usize, usize)> {
    let &[rows, cols] = t.dims() else {
        candle::bail!("{op}: {name} must be {what}, got shape {:?}", t.dims())
    };
    expect_layout(op, name, t, dtypes)?;
    Ok((rows, cols))
}

/// How far the lines of a matrix of one of `dtypes` and of `shape` are from each other: they are
/// contiguous and may lie apart, as some columns of a wider matrix do.
pub(crate) fn lines(op: &str, name: &str, t: &Tensor, dtypes: &[DType], shape: [usize; 2]) -> Result<usize> {
    if t.dims() != shape {
        candle::bail!("{op}: {name} must have shape {shape:?}, got {:?}", t.dims())
    }
    expect_dtype(op, name, t, dtypes)?;
    let ([rows, width], [apart, next]) = (shape, [t.stride()[0], t.stride()[1]]);
    if width > 1 && next != 1 || rows > 1 && apart < width {
        candle::bail!(
            "{op}: {name} must have contiguous lines, got shape {shape:?} with strides {:?}",
            t.stride()
        )
    }
    Ok(apart.max(width))
}

/// Whether the first entry of a view, and with it every line whose length is a multiple, begins on
/// so many bytes: for kernels that load several entries at once. Allocations of candle begin on 256
/// bytes.
pub(crate) fn begins_on(bytes: usize, t: &Tensor) -> bool {
    (t.layout().start_offset() * t.dtype().size_in_bytes()).is_multiple_of(bytes)
}

/// Refuses a view that does not begin on so many bytes.
pub(crate) fn expect_aligned(op: &str, name: &str, t: &Tensor, bytes: usize) -> Result<()> {
    if begins_on(bytes, t) {
        return Ok(());
    }
    candle::bail!(
        "{op}: {name} must begin on a multiple of {bytes} bytes, got a view {} entries of {:?} into its storage; call .force_contiguous() first",
        t.layout().start_offset(),
        t.dtype()
    )
}

/// Points in 2 or 3 dimensions as kernels load them, those in 2 as one number of 8 bytes: a copy
/// where a view does not begin on 8 bytes.
pub(crate) fn aligned_points(points: &Tensor) -> Result<Tensor> {
    if begins_on(POINT, points) { Ok(points.clone()) } else { points.force_contiguous() }
}

/// Refuses points in 2 dimensions that do not begin on 8 bytes, where a step may be recorded and
/// nothing can be copied.
pub(crate) fn expect_points(op: &str, name: &str, points: &Tensor) -> Result<()> {
    match points.dims() {
        [_, 2] => expect_aligned(op, name, points, POINT),
        _ => Ok(()),
    }
}

/// Bytes of a point in 2 dimensions.
const POINT: usize = 8;

/// Where a tensor's storage lies in host memory: equal for two tensors that share it.
pub(crate) fn address(tensor: &Tensor) -> usize {
    std::ptr::from_ref::<Storage>(&tensor.storage_and_layout().0).addr()
}
