// Energies of keys in spans of values on random shapes, compared with an elimination row by row.
#pragma once

#include "stress_pursuit.h"

extern "C" int clearhead_spans(const Spans *call, int instructions);

class SpansOfValues : protected Pursuits {
    // Returns the energy and the least relative pivot.
    static void eliminate(int64_t e, int64_t m, const double *v, int64_t step, const double *kernel, const double *lengths,
                          const double *factors, double *energy, double *pivot) {
        Numbers product((size_t)(e * m)), rows((size_t)(e * (e + m)));
        for (int64_t i = 0; i < e; ++i) {
            double mean = 0;
            for (int64_t j = 0; j < m; ++j) {
                double sum = 0;
                for (int64_t s = 0; s < m; ++s) sum += v[i * step + s] * lengths[s] * kernel[s * m + j];
                product[(size_t)(i * m + j)] = sum;
                mean += sum * factors[j] / (double)m;
            }
            for (int64_t j = 0; j < m; ++j)
                rows[(size_t)(i * (e + m) + e + j)] = product[(size_t)(i * m + j)] * factors[j] - mean;
        }
        for (int64_t i = 0; i < e; ++i)
            for (int64_t j = 0; j < e; ++j)
                for (int64_t s = 0; s < m; ++s)
                    rows[(size_t)(i * (e + m) + j)] += v[i * step + s] * lengths[s] * product[(size_t)(j * m + s)];
        *energy = 0;
        *pivot = INFINITY;
        Numbers diagonal;
        for (int64_t i = 0; i < e; ++i) diagonal.push_back(rows[(size_t)(i * (e + m) + i)]);
        for (int64_t i = 0; i < e; ++i) {
            const double *row = rows.data() + i * (e + m);
            *pivot = fmin(*pivot, row[i] / diagonal[(size_t)i]);
            for (int64_t j = e; j < e + m; ++j) *energy += row[j] * row[j] / row[i];
            for (int64_t other = i + 1; other < e; ++other) {
                const double factor = rows[(size_t)(other * (e + m) + i)] / row[i];
                for (int64_t j = 0; j < e + m; ++j) rows[(size_t)(other * (e + m) + j)] -= factor * row[j];
            }
        }
    }

  protected:
    using Pursuits::Pursuits;

    void spans() {
        const int64_t m = 1 + z.tokens % 97, e = 1 + z.value_width % (m < 70 ? m : 70), gap = draw.below(3);
        Spans call = {};
        call.heads = draw.below(3);
        call.draws = draw.below(4);
        call.width = e;
        call.tokens = m;
        call.value_step = m + gap;
        call.draw_step = e * call.value_step;
        call.head_step = call.draws * call.draw_step;
        const int64_t last = call.heads * call.head_step - (call.heads * call.draws ? gap : 0), pairs = call.heads * call.draws;
        const Block<double> values(last), kernels(call.heads * m * m), lengths(call.heads * m), factors(call.heads * m);
        const Block<double> energies(pairs), pivots(pairs), again(pairs);
        for (int64_t at = 0; at < last; ++at) values.get()[at] = draw.normal();
        for (int64_t head = 0; head < call.heads; ++head)
            for (int64_t i = 0; i < m; ++i) {
                lengths.get()[head * m + i] = 0.5 + draw.uniform();
                factors.get()[head * m + i] = 0.5 + draw.uniform();
                for (int64_t j = 0; j < m; ++j) kernels.get()[(head * m + i) * m + j] = exp(-fabs((double)(i - j)) * (double)(head + 1));
            }
        call.values = values.get();
        call.kernels = kernels.get();
        call.lengths = lengths.get();
        call.factors = factors.get();
        call.pivots = pivots.get();
        for (const int members : {threads, 1}) {
            call.threads = members;
            call.energies = members == 1 ? again.get() : energies.get();
            if (threads == 1) call.energies = energies.get();
            called(clearhead_spans, call);
        }
        for (int64_t at = 0; at < pairs; ++at) {
            const int64_t head = at / call.draws;
            double energy, pivot;
            eliminate(e, m, call.values + at * call.draw_step, call.value_step, call.kernels + head * m * m,
                      call.lengths + head * m, call.factors + head * m, &energy, &pivot);
            if (threads > 1 && energies.get()[at] != again.get()[at]) fail("other energies with other threads");
            // Errors grow by the condition number, which the inverse pivot approximates.
            const double allowed = 1e-13 * (double)m / fmax(pivot, 1e-300);
            if (allowed > 1e-4) continue;
            const double error = fabs(energies.get()[at] - energy) / fmax(fabs(energy), 1e-300);
            if (!(error <= allowed) && energy > 1e-20) fail("another energy", error / allowed);
            if (!(fabs(pivots.get()[at] / pivot - 1) <= allowed)) fail("another pivot");
        }
    }
};
