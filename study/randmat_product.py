"""Singular values of a long product of square matrices, to full relative accuracy at any condition number.

A = X_M ⋯ X_1 is kept as Q·diag(e^s)·T: Q orthogonal, s logarithms of a graded diagonal, T well conditioned.
A new factor X from the left gives X·Q·diag(e^s) = Q'·R, columns sorted by norm before the QR factorisation
(graded QR: Stewart 1995, ETNA 3; sorting: Tomás et al. 2012, IPDPS). Its backward error is one of X alone,
‖E‖ ≤ c·ε·‖X‖, so every singular value of A keeps the digits that the factors determine: relative error about
ε·Σκ(X_i), whatever κ(A). Nothing over- or underflows, since scales live in s.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.sparse.linalg import LinearOperator, eigsh

from study.errors import StudyError

Floats = NDArray[np.float64]

MOST_SPREAD = 650.0
"""Largest span of s, natural logarithm, whose singular values fit side by side into double precision."""


class Product:
    """The product of the factors handed to `append` so far, each N×N and invertible."""

    def __init__(self, n: int) -> None:
        self.n, self.m = n, 0
        self._q: Floats = np.eye(n)
        self._s: Floats = np.zeros(n)
        self._t: Floats = np.eye(n)

    def append(self, factor: Floats) -> None:
        """Multiply by one more factor, N×N, from the left; O(N³) whatever the number of factors."""
        columns = factor @ self._q
        order = np.argsort(-(self._s + np.log(np.linalg.norm(columns, axis=0))), kind="stable")
        s = self._s[order]
        q, r = linalg.qr(columns[:, order], mode="economic", overwrite_a=True, check_finite=False)
        self._q = np.asarray(q, np.float64)
        diagonal = np.abs(np.diag(r))
        # R·diag(e^s) = diag(e^s')·U with U of unit diagonal: only ratios of scales appear, ≤ about 1
        r /= diagonal[:, None]
        upper = np.triu(r * np.exp(np.minimum(s[None, :] - s[:, None], MOST_SPREAD)))
        self._t = linalg.blas.dtrmm(1.0, upper, self._t[order])
        self._s = np.asarray(s + np.log(diagonal), np.float64)
        self.m += 1

    def extremes(self) -> tuple[float, float]:
        """Return the natural logarithms of the largest and the smallest singular value.

        The smallest is the inverse of the inverse product's largest; both come from Lanczos iterations
        (a dense SVD where N is too small for them).
        """
        high, low = float(self._s.max()), float(self._s.min())
        down, up = np.exp(self._s - high), np.exp(low - self._s)
        t = self._t
        solve = linalg.lu_factor(t, check_finite=False)

        def gram(v: Floats) -> Floats:
            return t.T @ (down**2 * (t @ v))

        def inverse_gram(v: Floats) -> Floats:
            w = linalg.lu_solve(solve, up * v, check_finite=False)
            return up * linalg.lu_solve(solve, w, trans=1, check_finite=False)

        return high + _log_norm(gram, self.n) / 2, low - _log_norm(inverse_gram, self.n) / 2

    def singular_values(self) -> Floats:
        """Return the natural logarithms of all singular values, descending: (N,).

        By one-sided Jacobi rotations (LAPACK's gejsv), which are accurate on graded matrices. Raises
        StudyError where the values span more than double precision holds.
        """
        high, low = float(self._s.max()), float(self._s.min())
        if high - low > MOST_SPREAD:
            decades = (high - low) / np.log(10)
            raise StudyError(f"{self.m} factors span {decades:.0f} decades, too many for a whole spectrum")
        middle = (high + low) / 2
        graded = (np.exp(self._s - middle)[:, None] * self._t).T
        # accurate for columns of any scale; only singular values; neither restricted nor perturbed
        values, _, _, work, _, info = linalg.lapack.dgejsv(graded, joba=0, jobu=3, jobv=3, jobr=0, jobp=0)
        if info:
            raise StudyError(f"the singular values of {self.m} factors did not converge (gejsv: {info})")
        found: Floats = np.log(values * (work[0] / work[1])) + middle
        return found


def _log_norm(apply: Any, n: int) -> float:
    """Return the logarithm of the largest eigenvalue of a symmetric operator."""
    if n < MOST_DENSE:
        matrix = np.stack([apply(e) for e in np.eye(n)])
        return float(np.log(linalg.eigvalsh((matrix + matrix.T) / 2)[-1]))
    operator = LinearOperator((n, n), matvec=apply, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(n)
    (value,) = eigsh(
        operator, k=1, which="LA", v0=start, tol=1e-12, return_eigenvectors=False, maxiter=100 * n
    )
    return float(np.log(value))


MOST_DENSE = 12
"""Below this size Lanczos iterations save nothing."""
