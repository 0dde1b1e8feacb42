"""What the features have to give on every back end, against formulas written out in float64."""

import math

import numpy as np
import pytest

import msmon_stats

EDGES = tuple(np.linspace(-3, 3, 13).tolist())


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def entropy(weights):
    return -(weights * np.log(np.where(weights > 0, weights, 1.0))).sum(-1)


class FeatureConformance:
    """Inherit, and say how a tensor is made and read."""

    rtol = 1e-12
    """Of what is counted."""

    def make(self, array):
        raise NotImplementedError

    def host(self, result):
        return np.asarray(result)

    @pytest.fixture
    def rng(self):
        return np.random.default_rng(7)

    def test_sign_agreement(self, rng):
        g = rng.standard_normal((300, 500)).astype(np.float32)
        m = (g + rng.standard_normal(g.shape)).astype(np.float32)
        g[0] = 0
        expected = (np.mean(np.sign(g) * np.sign(m), dtype=np.float64) + 1) / 2
        found = self.host(msmon_stats.sign_agreement(self.make(g), self.make(m)))
        assert found.shape == ()
        assert found == pytest.approx(expected, rel=self.rtol)
        small = self.make(np.full(100, 1e-30, dtype=np.float32))
        assert self.host(msmon_stats.sign_agreement(small, small)) == 1.0
        assert self.host(msmon_stats.sign_agreement(small, self.make(np.full(100, -1e-30, dtype=np.float32)))) == 0.0
        assert self.host(msmon_stats.sign_agreement(self.make(np.zeros(3)), self.make(np.ones(3)))) == 0.5
        assert math.isnan(self.host(msmon_stats.sign_agreement(self.make(np.zeros(0)), self.make(np.zeros(0)))))
        assert self.host(msmon_stats.sign_agreement(self.make(np.array(2.0)), self.make(np.array(3.0)))) == 1.0
        with pytest.raises(ValueError, match=r"\(3,\) and momentum \(4,\) differ"):
            msmon_stats.sign_agreement(self.make(np.zeros(3)), self.make(np.zeros(4)))

    def test_entropy_of_what_is_a_probability_already(self, rng):
        logits = rng.standard_normal((50, 6))
        for probabilities in (softmax(logits), np.where(np.arange(6) < 2, 0.5, 0.0) + 0.0 * logits):
            found = self.host(msmon_stats.router_entropy(self.make(probabilities)))
            assert found == pytest.approx(entropy(probabilities).mean(), rel=1e-6)
        # One token that does not add up makes all of them logits.
        mixed = np.concatenate([softmax(logits), [[2.0, 0, 0, 0, 0, 0]]])
        assert self.host(msmon_stats.router_entropy(self.make(mixed))) == pytest.approx(
            entropy(softmax(mixed)).mean(), rel=1e-6
        )

    @pytest.mark.parametrize(
        "compute",
        [
            lambda x: msmon_stats.sign_agreement(x, x),
            lambda x: msmon_stats.histogram(x, EDGES),
            lambda x: msmon_stats.adam_histograms(x, x, EDGES, step=1, betas=(0.9, 0.99)),
            lambda x: msmon_stats.attention_features(x.reshape(2, 1, 1, 2), x.reshape(2, 1, 1, 2)),
            msmon_stats.linear_features,
            msmon_stats.router_similarity,
            msmon_stats.router_entropy,
        ],
    )
    def test_complex_values_are_refused(self, compute):
        with pytest.raises(ValueError, match=r"(?i)complex64 are complex"):
            compute(self.make(np.ones((2, 2), dtype=np.complex64)))

    def test_histogram(self, rng):
        values = rng.standard_normal((200, 500)).astype(np.float32)
        values[3, 3], values[4, 4], values[5, 5], values[6, 6] = np.nan, np.inf, -np.inf, 3.0
        counts = self.host(msmon_stats.histogram(self.make(values), EDGES))
        finite = values[np.isfinite(values)]
        np.testing.assert_array_equal(counts[1:13], np.histogram(finite, EDGES)[0])
        assert counts[0] == (finite < -3).sum()
        assert counts[13:].tolist() == [(finite > 3).sum(), 1, 1, 1]
        assert counts.sum() == values.size
        assert self.host(msmon_stats.histogram(self.make(np.zeros(0)), EDGES)).sum() == 0
        for edges in ((1.0,), (2.0, 1.0), (1.0, 1.0), (0.0, math.inf), (0.0, math.nan)):
            with pytest.raises(ValueError, match="at least two finite numbers in ascending order"):
                msmon_stats.histogram(self.make(np.zeros(2)), edges)

    def test_adam(self, rng):
        m = rng.standard_normal((90, 1000)).astype(np.float32) * 1e-3
        v = (rng.standard_normal(m.shape) ** 2).astype(np.float32) * 1e-6
        m[0], v[0] = 0, 0
        for step in (1, 7):
            m_hat, v_hat = m.astype(float) / (1 - 0.9**step), v.astype(float) / (1 - 0.999**step)
            with np.errstate(invalid="ignore"):
                expected = m_hat / (np.sqrt(v_hat) + 1e-6), m_hat / np.sqrt(v_hat)
            options = {"step": step, "betas": (0.9, 0.999), "eps": 1e-6}
            found = [self.host(x) for x in msmon_stats.adam_update(self.make(m), self.make(v), **options)]
            np.testing.assert_allclose(found, expected, rtol=1e-4)
            assert np.isnan(found[1][0]).all()
            counts = self.host(msmon_stats.adam_histograms(self.make(m), self.make(v), EDGES, **options))
            for row, values in zip(counts, found, strict=True):
                finite = values[np.isfinite(values)]
                np.testing.assert_allclose(row[1:13], np.histogram(finite, EDGES)[0], atol=2)
                assert row.sum() == m.size
            assert counts[1, 14] == 1000

    @pytest.mark.parametrize(("queries", "keys"), [(1, 1), (100, 100), (50, 80), (80, 50)])
    def test_attention(self, rng, queries, keys):
        q = rng.standard_normal((queries, 2, 4, 16)).astype(np.float32) * 2
        k = rng.standard_normal((keys, 2, 1, 16)).astype(np.float32)
        scores = q[:, 0, 0].astype(float) @ k[:, 0, 0].T.astype(float) / 4
        visible = np.arange(keys)[None] <= np.arange(queries)[:, None] + max(0, keys - queries)
        weights = softmax(np.where(visible, scores, -np.inf))
        expected = [entropy(weights).mean(), weights.max(-1).mean()]
        found = self.host(msmon_stats.attention_features(self.make(q), self.make(k)))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
        q, k = q.swapaxes(0, 1), k.swapaxes(0, 1)
        found = self.host(msmon_stats.attention_features(self.make(q), self.make(k), "b,s,h,d"))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)

    def test_attention_in_blocks_of_queries(self, rng, monkeypatch):
        from msmon_stats.features import attention

        q, k = (self.make(rng.standard_normal((70, 1, 1, 8)).astype(np.float32)) for _ in range(2))
        whole = self.host(msmon_stats.attention_features(q, k))
        monkeypatch.setattr(attention, "_SCORES", 300)
        np.testing.assert_allclose(self.host(msmon_stats.attention_features(q, k)), whole, rtol=1e-6)

    def test_attention_refuses(self):
        good = self.make(np.zeros((3, 1, 1, 4)))
        for q, k, layout, message in (
            (self.make(np.zeros((3, 1, 4))), good, "s,b,h,d", r"query must be 4-D .* not of shape \(3, 1, 4\)"),
            (good, self.make(np.zeros((3, 1, 1, 5))), "s,b,h,d", "differ in their last axis"),
            (good, good, "b,h,s,d", "layout 'b,h,s,d' is not one of"),
        ):
            with pytest.raises(ValueError, match=message):
                msmon_stats.attention_features(q, k, layout)

    def matrices(self, rng):
        left, right = (np.linalg.qr(rng.standard_normal((300, 300)))[0] for _ in range(2))
        spectra = {
            "close singular values": np.r_[1, 0.9999, 0.999, np.linspace(0.998, 0, 297)],
            "a flat top": np.r_[np.ones(150), np.linspace(0.999, 0, 150)],
            "one just above many": np.r_[1.002, np.ones(299)],
            "dense towards the top": 1 - np.linspace(0, 1, 300) ** 2 * 0.9,
            "denser towards the top": 1 - np.linspace(0, 1, 300) ** 3 * 0.9,
            "falling fast": 0.9 ** np.arange(300),
        }
        yield from ((name, left @ np.diag(values) @ right) for name, values in spectra.items())
        for shape in ((200, 200), (64, 900), (900, 64), (1, 50), (50, 1), (1, 1), (2, 3)):
            yield f"random {shape}", rng.standard_normal(shape)
        yield "the identity", np.eye(100)
        yield "all the same", np.ones((100, 70))
        yield "of rank two", rng.standard_normal((80, 2)) @ rng.standard_normal((2, 90))
        yield "tiny", rng.standard_normal((60, 50)) * 1e-25
        yield "huge", rng.standard_normal((60, 50)) * 1e30

    def test_linear_features(self, rng):
        for name, matrix in self.matrices(rng):
            matrix = matrix.astype(np.float32)
            rank, norm = self.host(msmon_stats.linear_features(self.make(matrix)))
            expected = np.linalg.svd(matrix.astype(float), compute_uv=False)
            assert norm == pytest.approx(expected[0], rel=1e-3), name
            assert rank == pytest.approx(np.sqrt(np.square(expected).sum()) / expected[0], rel=1e-3), name

    def test_linear_features_of_odd_matrices(self):
        rank, norm = self.host(msmon_stats.linear_features(self.make(np.zeros((5, 9), dtype=np.float32))))
        assert math.isnan(rank)
        assert norm == 0.0
        for bad in (np.nan, np.inf):
            matrix = np.ones((5, 6), dtype=np.float32)
            matrix[2, 3] = bad
            assert np.isnan(self.host(msmon_stats.linear_features(self.make(matrix)))).all()
        for shape in ((3,), (2, 3, 4), (0, 4)):
            with pytest.raises(ValueError, match="a weight must be 2-D with elements"):
                msmon_stats.linear_features(self.make(np.zeros(shape)))

    def test_router(self, rng):
        weight = rng.standard_normal((8, 64)).astype(np.float32)
        unit = weight / np.linalg.norm(weight, axis=1, keepdims=True)
        cosines = (unit @ unit.T)[np.triu_indices(8, 1)]
        for arrangement in (weight, np.ascontiguousarray(weight.T)):
            found = self.host(msmon_stats.router_similarity(self.make(arrangement)))
            assert found == pytest.approx(cosines.mean(), rel=1e-4)
        same = self.make(np.ones((4, 9), dtype=np.float32))
        assert self.host(msmon_stats.router_similarity(same)) == pytest.approx(1.0)
        assert math.isnan(self.host(msmon_stats.router_similarity(self.make(np.ones((1, 9))))))
        assert self.host(msmon_stats.router_similarity(self.make(np.zeros((2, 9))))) == 0.0
        logits = rng.standard_normal((4, 7, 8)).astype(np.float32)
        logits[0, 0, 3] = -np.inf
        found = self.host(msmon_stats.router_entropy(self.make(logits)))
        assert found == pytest.approx(entropy(softmax(logits.astype(float))).mean(), rel=1e-5)
        assert math.isnan(self.host(msmon_stats.router_entropy(self.make(np.zeros((0, 8))))))
        with pytest.raises(ValueError, match="2-D"):
            msmon_stats.router_similarity(self.make(np.zeros(3)))
        with pytest.raises(ValueError, match="experts"):
            msmon_stats.router_entropy(self.make(np.array(1.0)))
