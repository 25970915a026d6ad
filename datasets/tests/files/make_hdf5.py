"""Makes the HDF5 files of the tests: run in this folder, with h5py and anndata."""
import anndata
import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp

dense = np.array(
    [[0, 1.5, 0, 0, -2, 0], [0] * 6, [3, 0, 0, 4, 0, 5], [0, 0, 0, 0, 0, 7]], dtype=np.float32
)
obs = pd.DataFrame(
    {
        "kind": pd.Categorical(["T", "B", "T", "NK"]),
        "batch": np.array([1, 0, 1, 1], dtype=np.int64),
        "donor": np.array(["x", "y", "y", "x"], dtype=object),
    },
    index=["AA", "AC", "AG", "AT"],
)
for name, x in [("csr", sp.csr_matrix(dense)), ("csc", sp.csc_matrix(dense)), ("dense", dense)]:
    data = anndata.AnnData(x, obs=obs.copy(), layers={"twice": sp.csr_matrix(2 * dense)})
    data.write_h5ad(f"{name}.h5ad", compression="gzip")

genes = sp.csc_matrix(dense.T.round().astype(np.int32))
with h5py.File("tenx.h5", "w") as file:
    matrix = file.create_group("matrix")
    for key, values in [
        ("barcodes", np.array(obs.index, dtype="S18")),
        ("data", genes.data),
        ("indices", genes.indices.astype(np.int64)),
        ("indptr", genes.indptr.astype(np.int64)),
        ("shape", np.array(genes.shape, dtype=np.int32)),
    ]:
        matrix.create_dataset(key, data=values, chunks=(4,) if len(values) > 4 else None, compression="gzip" if len(values) > 4 else None, shuffle=len(values) > 4)
    matrix.create_group("features").create_dataset("id", data=np.array(list("abcdef"), dtype="S1"))

# As AnnData wrote before its version 0.7: records, categories in uns.
with h5py.File("records.h5ad", "w") as file:
    file.create_dataset("X", data=dense)
    records = np.zeros(4, dtype=[("index", "S2"), ("kind", "i1"), ("donor", "S1"), ("batch", "<i8"), ("size", "<f4")])
    records["index"], records["kind"], records["donor"] = list(obs.index), [2, 0, 2, 1], list("xyyx")
    records["batch"], records["size"] = [1, 0, 1, 1], [0.5, 1, 2, 3]
    file.create_dataset("obs", data=records)
    file.create_dataset("uns/kind_categories", data=np.array(["B", "NK", "T"], dtype="S2"))
