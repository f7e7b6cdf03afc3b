// A list of torch operations with fixed arguments, which is run without Python. Each operation writes to tensors that the
// list holds, so their addresses never change.

struct Program : torch::CustomClassHolder {
  struct Call {
    c10::OperatorHandle operation;
    std::vector<c10::IValue> arguments;
    std::vector<std::optional<at::Tensor>> results;  // the operation's results are copied to these
  };
  std::vector<Call> calls;

  // Append the operation `name`, such as aten::add, with the overload name of its schema and all arguments in the order of
  // the schema. Where `results` has a tensor, the operation's result is copied to it.
  void add(const std::string& name, const std::string& overload, std::vector<c10::IValue> arguments,
           const c10::List<std::optional<at::Tensor>>& results) {
    const auto operation = c10::Dispatcher::singleton().findSchema({name, overload});
    TORCH_CHECK(operation, "program: there is no operation " + name + "." + overload);
    TORCH_CHECK(arguments.size() == operation->schema().arguments().size(), "program: wrong number of arguments for " + name);
    for (size_t i = 0; i < arguments.size(); ++i)  // Python's lists of tensors are not lists of optional tensors
      if (*operation->schema().arguments()[i].type() == *c10::ListType::ofOptionalTensors() && arguments[i].isTensorList()) {
        c10::List<std::optional<at::Tensor>> converted;
        for (const at::Tensor& tensor : arguments[i].toTensorVector()) converted.push_back(tensor);
        arguments[i] = converted;
      }
    calls.push_back({*operation, std::move(arguments), {results.begin(), results.end()}});
  }

  // A tensor of the calls. Its sizes and strides whose flag is not 0 are proportional to the number of rows.
  struct Varying {
    at::Tensor tensor;
    std::vector<int64_t> sizes, strides;  // those of the recording
    std::vector<int64_t> size_varies, stride_varies;
  };
  std::vector<Varying> varying;
  int64_t rows = 0;  // what `set_rows` was called with last

  void vary(const at::Tensor& tensor, std::vector<int64_t> sizes, std::vector<int64_t> strides) {
    TORCH_CHECK(static_cast<int64_t>(sizes.size()) == tensor.dim() && sizes.size() == strides.size(),
                "program: expected a flag for each size and stride");
    varying.push_back({tensor, tensor.sizes().vec(), tensor.strides().vec(), std::move(sizes), std::move(strides)});
  }

  // Let the calls compute the first `count` of the `recorded` rows.
  void set_rows(int64_t count, int64_t recorded) {
    TORCH_CHECK(0 < count && count <= recorded, say("program: ", count, " rows, expected 1 to ", recorded));
    if (count == rows) return;
    auto scaled = [&](std::vector<int64_t> numbers, const std::vector<int64_t>& varies) {
      for (size_t i = 0; i < numbers.size(); ++i)
        if (varies[i]) {
          TORCH_CHECK(numbers[i] * count % recorded == 0, say("program: ", count, " of ", recorded, " rows split a group"));
          numbers[i] = numbers[i] * count / recorded;
        }
      return numbers;
    };
    for (Varying& one : varying)
      one.tensor.unsafeGetTensorImpl()->set_sizes_and_strides(scaled(one.sizes, one.size_varies),
                                                              scaled(one.strides, one.stride_varies));
    rows = count;
  }

  int64_t size() const { return calls.size(); }

  void run() const {
    torch::jit::Stack stack;
    for (const Call& call : calls) {
      stack.assign(call.arguments.begin(), call.arguments.end());
      call.operation.callBoxed(stack);
      for (size_t i = 0; i < call.results.size(); ++i)
        if (call.results[i]) call.results[i]->copy_(stack[i].toTensor());
    }
  }
};
