// Reads the symbol table of the ELF file that contains a kernel, once per file.
#include "cudasim/symbols.h"

#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace cudasim {
namespace {

struct Variable {
  std::string name;
  size_t offset, bytes;  // offset and size in the module's thread-local memory
};

// The symbols of a program or a library.
struct Module {
  std::map<uintptr_t, std::string> functions;  // by address in the file
  std::vector<Variable> shared;
};

// Where the loader has put it.
struct SymbolLocation {
  std::string path;
  uintptr_t base = 0;
  size_t initialized = 0;               // bytes of thread-local variables with an initializer; the others follow
  char* thread_local_memory = nullptr;  // the module's memory of the calling thread; null if the thread has none yet
  bool found = false;
  uintptr_t address = 0;  // the address to look for
};

int find_place(dl_phdr_info* info, size_t, void* data) {
  SymbolLocation& location = *static_cast<SymbolLocation*>(data);
  bool inside = false;
  size_t initialized = 0;
  for (int k = 0; k < info->dlpi_phnum; ++k) {
    const ElfW(Phdr)& header = info->dlpi_phdr[k];
    const uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_LOAD && location.address >= begin && location.address < begin + header.p_memsz) inside = true;
    if (header.p_type == PT_TLS) initialized = header.p_filesz;
  }
  if (!inside) return 0;
  location.path = info->dlpi_name && *info->dlpi_name ? info->dlpi_name : "/proc/self/exe";
  location.base = info->dlpi_addr;
  location.initialized = initialized;
  location.thread_local_memory = static_cast<char*>(info->dlpi_tls_data);
  location.found = true;
  return 1;
}

SymbolLocation location_of(const void* address) {
  SymbolLocation location;
  location.address = reinterpret_cast<uintptr_t>(address);
  dl_iterate_phdr(find_place, &location);
  return location;
}

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

// True for variables of functions, except functions of libraries that only the host calls.
bool may_be_shared(const std::string& name) {
  if (!starts_with(name, "_ZZ")) return false;
  for (const char* host : {"_ZZN7cudasim", "_ZZNSt", "_ZZNKSt", "_ZZSt", "_ZZN9__gnu_cxx", "_ZZN8pybind11"}) {
    if (starts_with(name, host)) return false;
  }
  return true;
}

const ElfW(Shdr) * section_of_symbols(const std::vector<char>& file) {
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(file.data());
  if (file.size() < sizeof *header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return nullptr;
  const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(file.data() + header->e_shoff);
  for (int k = 0; k < header->e_shnum; ++k) {
    if (sections[k].sh_type == SHT_SYMTAB) return &sections[k];
  }
  return nullptr;
}

Module read_module(const SymbolLocation& location) {
  Module module;
  std::ifstream stream(location.path, std::ios::binary);
  const std::vector<char> file((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  const ElfW(Shdr)* section = section_of_symbols(file);
  if (!section) return module;
  const auto* sections =
      reinterpret_cast<const ElfW(Shdr)*>(file.data() + reinterpret_cast<const ElfW(Ehdr)*>(file.data())->e_shoff);
  const char* names = file.data() + sections[section->sh_link].sh_offset;
  const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(file.data() + section->sh_offset);
  std::set<std::string> guards;
  std::vector<Variable> variables;
  for (size_t k = 0; k < section->sh_size / sizeof *symbols; ++k) {
    const ElfW(Sym)& symbol = symbols[k];
    const std::string name = names + symbol.st_name;
    const int type = symbol.st_info & 0xf;
    if (type == STT_FUNC && symbol.st_value) module.functions[symbol.st_value] = name;
    if (type != STT_TLS) continue;
    if (starts_with(name, "_ZGVZ")) guards.insert(name);
    if (may_be_shared(name) && symbol.st_value >= location.initialized)
      variables.push_back({name, symbol.st_value, symbol.st_size});
  }
  for (Variable& variable : variables) {  // a variable with a guard has a constructor, which shared variables do not have
    if (!guards.count("_ZGV" + variable.name.substr(2))) module.shared.push_back(std::move(variable));
  }
  return module;
}

const Module& module_at(const SymbolLocation& location) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Module>> modules;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Module>& module = modules[location.path];
  if (!module) module = std::make_unique<Module>(read_module(location));
  return *module;
}

std::string symbol_of(const void* function) {
  const SymbolLocation location = location_of(function);
  if (!location.found) return {};
  const auto& functions = module_at(location).functions;
  const auto at = functions.find(location.address - location.base);
  return at == functions.end() ? std::string() : at->second;
}

}  // namespace

std::string name_of(const void* kernel) {
  const std::string symbol = symbol_of(kernel);
  if (symbol.empty()) return "a kernel";
  int status = 0;
  char* text = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  const std::string name = status == 0 ? text : symbol;
  std::free(text);
  return name;
}

const std::vector<MemoryRange>& shared_variables(const void* kernel) {
  struct Known {
    std::vector<MemoryRange> ranges;
    bool complete = false;
  };
  static thread_local std::map<const void*, Known> known;
  Known& mine = known[kernel];
  if (mine.complete) return mine.ranges;
  const SymbolLocation location = location_of(kernel);
  mine.complete = !location.found || location.thread_local_memory;
  if (!location.found || !location.thread_local_memory) return mine.ranges;
  for (const Variable& variable : module_at(location).shared) {
    mine.ranges.push_back({location.thread_local_memory + variable.offset, variable.bytes});
  }
  return mine.ranges;
}

size_t own_shared_bytes(const void* kernel) {
  const std::string symbol = symbol_of(kernel);
  if (!starts_with(symbol, "_Z")) return 0;
  const std::string prefix = "_ZZ" + symbol.substr(2) + "E";
  size_t bytes = 0;
  for (const Variable& variable : module_at(location_of(kernel)).shared) {
    if (starts_with(variable.name, prefix.c_str())) bytes += variable.bytes;
  }
  return bytes;
}

}  // namespace cudasim
