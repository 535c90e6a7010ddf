"""Standard attention, and the two formulas that AutoBERT-Zero found and prints."""

FORMULAS = {
    "attention": "matmul(softmax(scale(matmul(Q,transpose(K)))),V)",
    "layer 2": "matmul(softmax(scale(matmul(Q,transpose(neg(logsigmoid(neg(K))))))),add(K,Q))",
    "layer 12": "matmul(softmax(scale(matmul(Q,transpose(add(V,scale(K)))))),V)",
}
